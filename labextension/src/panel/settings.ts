/** The person's settings, as labextension/schema/panel.json describes them. */

export interface PanelSettings {
  showHardware: boolean;
  showStart: boolean;
  showRuns: boolean;
  /** When the end of a run is told. */
  notify: "elsewhere" | "always" | "never";
  /** Only of runs that took as long. */
  notifyAfterS: number;
  /** Also of runs that succeeded. */
  notifySuccess: boolean;
  /** How often a kernel is asked to go on with its news. */
  helloEveryS: number;
}

export const DEFAULT_SETTINGS: PanelSettings = {
  showHardware: true,
  showStart: true,
  showRuns: true,
  notify: "elsewhere",
  notifyAfterS: 30,
  notifySuccess: true,
  helloEveryS: 240,
};

/** Those of another version, or out of bounds, count as not set. */
export function settingsFrom(value: Record<string, unknown>): PanelSettings {
  const flag = (name: "showHardware" | "showStart" | "showRuns" | "notifySuccess") =>
    typeof value[name] === "boolean" ? value[name] : DEFAULT_SETTINGS[name];
  const seconds = (name: "notifyAfterS" | "helloEveryS", least: number, most: number) => {
    const given = value[name];
    return typeof given === "number" && given >= least && given <= most ? given : DEFAULT_SETTINGS[name];
  };
  const { notify } = value;
  return {
    showHardware: flag("showHardware"),
    showStart: flag("showStart"),
    showRuns: flag("showRuns"),
    notify: notify === "always" || notify === "never" ? notify : DEFAULT_SETTINGS.notify,
    notifyAfterS: seconds("notifyAfterS", 0, 86_400),
    notifySuccess: flag("notifySuccess"),
    helloEveryS: seconds("helloEveryS", 10, 500),
  };
}
