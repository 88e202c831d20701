/** A kernel that answers as told: stands in for a connection of JupyterLab. */
import { Changes } from "../src/comm/changes";
import type { CommMessage, KernelLink, LinkState } from "../src/comm/kernelLink";
import { PANEL_VERSION } from "../src/panel/version";
import type { PanelRequest } from "../src/protocol/decodePanel";
import type { HardwareNow, KernelFacts, NodeHardware, RunSummary } from "../src/protocol/generated";

const GIB = 2 ** 30;

export const TWO_GPUS: NodeHardware = {
  host: "node-a",
  cpu_count: 16,
  memory_bytes: 128 * GIB,
  memory_available_bytes: 100 * GIB,
  devices: { cuda: [gpu(2), gpu(5)] },
  visible_ids: {},
  unusable: {},
  notes: [],
  platform: "linux",
  kernel_cuda_origin: "",
  tpu_evidence: "",
  mpi_command: "",
  saved_config: null,
};

function gpu(index: number) {
  const name = "NVIDIA H200";
  return { index, uuid: "", name, memory_bytes: 140 * GIB, memory_used_bytes: 0, kernel_used_bytes: 0 };
}

export const BUSY_GPU: HardwareNow = {
  type: "hardware_now",
  time_s: 1,
  cpu_utilization: 0.25,
  memory_used_bytes: 32 * GIB,
  devices: [
    {
      kind: "cuda",
      index: 5,
      memory_used_bytes: 70 * GIB,
      utilization: 0.9,
      users: [
        { pid: 1, name: "this kernel", memory_bytes: 2 * GIB, is_kernel: true },
        { pid: 2, name: "rank 1 of train", memory_bytes: 40 * GIB, is_kernel: false },
        { pid: 3, name: "another kernel", memory_bytes: 8 * GIB, is_kernel: false },
      ],
    },
  ],
};

export function facts(part: Partial<KernelFacts> = {}): KernelFacts {
  return {
    type: "kernel_facts",
    version: PANEL_VERSION,
    comm_id: "comm-1",
    pid: 7,
    hardware: TWO_GPUS,
    now: null,
    runs: [],
    settings: null,
    ...part,
  };
}

export function run(part: Partial<RunSummary> = {}): RunSummary {
  return {
    run_id: "run-1",
    function_name: "train",
    status: "running",
    num_ranks: 2,
    device_kind: "cuda",
    started_s: 100,
    duration_s: null,
    headline: "",
    cell: "In[3]",
    cell_id: "cell-c",
    log_dir: "",
    ...part,
  };
}

export class StandInKernel implements KernelLink {
  readonly changes = new Changes();
  readonly asked: PanelRequest[] = [];
  readonly listened: string[] = [];
  state: LinkState = "alive";
  executes = false;
  /** undefined: it has not loaded accel_nb, so it never answers. */
  answers: ((request: PanelRequest) => unknown) | undefined;
  loadProblem = "";
  hasOpenComm = false;
  speaks = "python";
  private readonly callbacks = new Set<(message: CommMessage) => void>();

  language(): Promise<string> {
    return Promise.resolve(this.speaks);
  }

  request(content: PanelRequest): Promise<unknown> {
    this.asked.push(content);
    return this.answers === undefined ? new Promise(() => undefined) : Promise.resolve(this.answers(content));
  }

  hasComm(): Promise<boolean> {
    return Promise.resolve(this.hasOpenComm);
  }

  loadExtension(): Promise<string> {
    return Promise.resolve(this.loadProblem);
  }

  listenTo(commId: string): void {
    this.listened.push(commId);
  }

  onComm(callback: (message: CommMessage) => void, until: AbortSignal): void {
    this.callbacks.add(callback);
    until.addEventListener("abort", () => this.callbacks.delete(callback));
  }

  tell(message: CommMessage): void {
    for (const callback of this.callbacks) {
      callback(message);
    }
  }

  news(data: unknown): void {
    this.tell({ kind: "data", commId: "comm-1", data });
  }

  become(state: LinkState): void {
    this.state = state;
    this.changes.tell();
  }

  get isHeard(): boolean {
    return this.callbacks.size > 0 || this.changes.isHeard;
  }

  types(): string[] {
    return this.asked.map((request) => request.type);
  }
}

/** It has loaded accel_nb. */
export function readyKernel(part: Partial<KernelFacts> = {}): StandInKernel {
  const kernel = new StandInKernel();
  kernel.answers = (request) => (request.type === "hello" ? facts(part) : { type: "accepted" });
  return kernel;
}
