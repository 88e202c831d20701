/** Which accelerators: one box each, where there is a choice. */
import type { DeviceInfo, NodeHardware } from "../protocol/generated";
import type { Choice } from "./choice";

interface DevicePickerProps {
  choice: Choice;
  hardware: NodeHardware;
  change: (part: Partial<Choice>) => void;
}

export function DevicePicker({ choice, hardware, change }: DevicePickerProps) {
  const infos = offered(choice, hardware);
  if (infos.length < 2) {
    return null;
  }
  const toggle = (position: number) => change(toggled(choice, position, infos.length));
  return (
    <fieldset class="accel-panel-devices">
      <legend>Devices</legend>
      {infos.map((info, position) => (
        <label key={info.index} title={info.name}>
          <input
            type="checkbox"
            checked={choice.devices === null || choice.devices.includes(position)}
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
  if (choice.device !== "auto") {
    return hardware.devices[choice.device] ?? [];
  }
  return Object.values(hardware.devices).find((infos) => infos.length > 0) ?? [];
}

/** Positions among the visible devices, as the launcher takes them; all of them are no choice, and so is none. */
function toggled(choice: Choice, position: number, count: number): Partial<Choice> {
  const all = Array.from({ length: count }, (_, at) => at);
  const before = choice.devices ?? all;
  const after = before.includes(position)
    ? before.filter((one) => one !== position)
    : [...before, position].sort((one, other) => one - other);
  return { devices: after.length === 0 || after.length === count ? null : after };
}
