/** Which accelerators: one box each, where there is a choice. */
import type { DeviceInfo, NodeHardware } from "../protocol/generated";
import { type Choice, isAuto } from "./choice";

interface DevicePickerProps {
  /** With the settings file. */
  choice: Choice;
  /** Whether that says which. */
  areKept: boolean;
  hardware: NodeHardware;
  change: (part: Partial<Choice>) => void;
}

export function DevicePicker({ choice, areKept, hardware, change }: DevicePickerProps) {
  const infos = offered(choice, hardware);
  if (infos.length < 2) {
    return null;
  }
  const toggle = (position: number) => change(toggled(choice, position, infos, areKept));
  return (
    <fieldset class="accel-panel-devices">
      <legend>Devices</legend>
      {infos.map((info, position) => (
        <label key={info.index} title={info.name}>
          <input
            type="checkbox"
            checked={choice.devices === null || positions(choice.devices, infos).includes(position)}
            onChange={() => toggle(position)}
          />
          {info.index}
        </label>
      ))}
    </fieldset>
  );
}

/** Of the kind that would be used, in visible order. */
function offered(choice: Choice, hardware: NodeHardware): DeviceInfo[] {
  if (!isAuto(choice.device)) {
    return hardware.devices[choice.device] ?? [];
  }
  return Object.values(hardware.devices).find((infos) => infos.length > 0) ?? [];
}

/** A settings file may name a device by its id, or the beginning of that. */
function positions(devices: readonly (number | string)[], infos: readonly DeviceInfo[]): number[] {
  return devices.map((one) => (typeof one === "number" ? one : infos.findIndex(({ uuid }) => uuid.startsWith(one))));
}

/** Positions among the visible devices, as the launcher takes them; none of them is no choice, and all are none but against a file. */
function toggled(choice: Choice, position: number, infos: readonly DeviceInfo[], areKept: boolean): Partial<Choice> {
  const all = infos.map((_, at) => at);
  const before = choice.devices === null ? all : positions(choice.devices, infos);
  const after = before.includes(position)
    ? before.filter((one) => one !== position)
    : [...before, position].sort((one, other) => one - other);
  const isNoChoice = after.length === 0 || (after.length === all.length && !areKept);
  // What is chosen here overrules all that a file says of devices, the kind, too.
  return { devices: isNoChoice ? null : after, device: choice.device };
}
