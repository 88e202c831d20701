/** Reads the person's settings now and whenever they change, and does what they say about time. */
import type { ISettingRegistry } from "@jupyterlab/settingregistry";
import type { Notebooks } from "../notebook/notebooks";
import type { PanelModel } from "../panel/model";
import { DEFAULT_SETTINGS, type PanelSettings, settingsFrom } from "../panel/settings";

interface CurrentSettings {
  now: PanelSettings;
}

/** For as long as the page lives. */
export function followSettings(
  registry: ISettingRegistry | null,
  pluginId: string,
  model: PanelModel,
  notebooks: Notebooks,
): CurrentSettings {
  const current = { now: DEFAULT_SETTINGS };
  let timer: ReturnType<typeof setInterval> | undefined;
  const take = (settings: PanelSettings) => {
    current.now = settings;
    model.setSettings(settings);
    clearInterval(timer);
    timer = setInterval(() => notebooks.beat(settings.notify !== "never"), 1000 * settings.helloEveryS);
  };
  take(current.now);
  void registry?.load(pluginId).then(
    (loaded) => {
      const read = () => take(settingsFrom(loaded.composite));
      loaded.changed.connect(read);
      read();
    },
    (error: unknown) => console.error(`accel-nb: its settings cannot be read, so the defaults count. ${error}`),
  );
  return current;
}
