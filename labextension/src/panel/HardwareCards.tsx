/** What the kernel's machine has, who uses it, and how busy it is. */
import type { DeviceInfo, DeviceUse, DeviceUser, HardwareNow, KernelFacts } from "../protocol/generated";
import { deviceKey, type Usage } from "./usage";
import { cpus, memory, memoryOf, percent } from "./words";

interface HardwareCardsProps {
  facts: KernelFacts;
  /** null: not told yet. */
  now: HardwareNow | null;
  usage: Usage;
}

export function HardwareCards({ facts, now, usage }: HardwareCardsProps) {
  const { hardware } = facts;
  const devices = Object.entries(hardware.devices).flatMap(([kind, infos]) => infos.map((info) => ({ kind, info })));
  const unusable = Object.entries(hardware.unusable ?? {}); // a kernel before it has no such field
  return (
    <>
      <CpuCard facts={facts} now={now} values={usage.cpu ?? []} />
      {devices.map(({ kind, info }) => (
        <DeviceCard
          key={deviceKey(kind, info.index)}
          kind={kind}
          info={info}
          use={now?.devices.find((one) => one.kind === kind && one.index === info.index)}
          values={usage[deviceKey(kind, info.index)] ?? []}
        />
      ))}
      {devices.length === 0 && unusable.length === 0 && (
        <p class="accel-panel-note">No accelerator is visible to this kernel.</p>
      )}
      {unusable.map(([kind, why]) => (
        <p key={kind} class="accel-panel-warning">
          {why}
        </p>
      ))}
      {hardware.kernel_cuda_origin !== "" && (
        <p class="accel-panel-note">The kernel itself uses CUDA, since {hardware.kernel_cuda_origin}.</p>
      )}
      {hardware.notes.map((note) => (
        <p key={note} class="accel-panel-note">
          {note}
        </p>
      ))}
    </>
  );
}

function CpuCard({ facts, now, values }: { facts: KernelFacts; now: HardwareNow | null; values: readonly number[] }) {
  const { hardware } = facts;
  const used = now?.memory_used_bytes ?? hardware.memory_bytes - hardware.memory_available_bytes;
  return (
    <article class="accel-panel-card" aria-label="CPU">
      <div class="accel-panel-row">
        <strong>{cpus(hardware)}</strong>
        <Busy part={now?.cpu_utilization ?? null} values={values} what="CPU" />
      </div>
      <Memory used={used} total={hardware.memory_bytes} parts={[{ kind: "rest", bytes: used }]} what="CPU memory" />
    </article>
  );
}

interface DeviceCardProps {
  kind: string;
  info: DeviceInfo;
  /** undefined: not told yet. */
  use: DeviceUse | undefined;
  values: readonly number[];
}

function DeviceCard({ kind, info, use, values }: DeviceCardProps) {
  const label = deviceKey(kind, info.index);
  const used = use?.memory_used_bytes ?? info.memory_used_bytes;
  const users = use?.users ?? [];
  const known = users.reduce((sum, user) => sum + user.memory_bytes, 0);
  const parts = users.map((user) => ({ kind: userKind(user), bytes: user.memory_bytes }));
  return (
    <article class="accel-panel-card" aria-label={`${label} ${info.name}`}>
      <div class="accel-panel-row">
        <span class="accel-panel-device" title={info.name}>
          <strong>{label}</strong> {info.name.replace(/^NVIDIA /, "")}
        </span>
        <Busy part={use?.utilization ?? null} values={values} what={label} />
      </div>
      <Memory
        used={used}
        total={info.memory_bytes}
        parts={[...parts, { kind: "rest", bytes: Math.max(0, used - known) }]}
        what={`Memory of ${label}`}
      />
      {users.length > 0 && (
        <ul class="accel-panel-users" aria-label={`Who uses ${label}`}>
          {users.map((user) => (
            <li key={user.pid} title={`process ${user.pid}`}>
              <span class={`accel-panel-swatch accel-panel-${userKind(user)}`} aria-hidden="true" />
              <span class="accel-panel-user">{user.name}</span>
              <span>{memory(user.memory_bytes)}</span>
            </li>
          ))}
        </ul>
      )}
    </article>
  );
}

type UserKind = "kernel" | "rank" | "other" | "rest";

function userKind(user: DeviceUser): UserKind {
  if (user.is_kernel) {
    return "kernel";
  }
  return user.name.startsWith("rank ") ? "rank" : "other";
}

interface MemoryProps {
  used: number;
  total: number;
  parts: { kind: UserKind; bytes: number }[];
  what: string;
}

function Memory({ used, total, parts, what }: MemoryProps) {
  const text = memoryOf(used, total);
  return (
    <div class="accel-panel-memory">
      {/* biome-ignore lint/a11y/useSemanticElements: a <meter> has one part only */}
      <div
        class="accel-panel-bar"
        role="meter"
        aria-label={what}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={total > 0 ? Math.round((100 * used) / total) : 0}
        aria-valuetext={text}
      >
        {total > 0 &&
          parts.map(({ kind, bytes }, at) => (
            <span key={at} class={`accel-panel-${kind}`} style={{ width: `${(100 * bytes) / total}%` }} />
          ))}
      </div>
      <small>{text}</small>
    </div>
  );
}

const CURVE_WIDTH = 48;
const CURVE_HEIGHT = 14;

/** How busy it is now, with a small curve of the last two minutes. */
function Busy({ part, values, what }: { part: number | null; values: readonly number[]; what: string }) {
  if (part === null) {
    return null;
  }
  const step = CURVE_WIDTH / 59;
  const left = CURVE_WIDTH - step * (values.length - 1);
  const points = values.map(
    (value, at) => `${(left + at * step).toFixed(1)},${(CURVE_HEIGHT - 1 - value * (CURVE_HEIGHT - 2)).toFixed(1)}`,
  );
  return (
    <span class="accel-panel-busyness" title={`${what}: ${percent(part)} busy; the last two minutes`}>
      <svg width={CURVE_WIDTH} height={CURVE_HEIGHT} aria-hidden="true">
        <line x1={0} x2={CURVE_WIDTH} y1={CURVE_HEIGHT - 0.5} y2={CURVE_HEIGHT - 0.5} />
        <polyline points={points.join(" ")} />
      </svg>
      <span class="accel-panel-percent">{percent(part)}</span>
    </span>
  );
}
