// @vitest-environment jsdom
/** JupyterLab's own connection, over a socket that stands in for the server. */
import { KernelConnection, type KernelMessage, ServerConnection } from "@jupyterlab/services";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { LinkState } from "../src/comm/kernelLink";
import { LabKernel } from "../src/comm/labKernel";
import { KernelTalk } from "../src/panel/talk";
import type { RunSummary } from "../src/protocol/generated";
import { facts, run } from "./standInKernel";

const LANGUAGE = { status: "ok", language_info: { name: "python" } };

class StandInSocket {
  onopen: () => void = () => undefined;
  onclose: (event: { code: number }) => void = () => undefined;
  onerror: () => void = () => undefined;
  onmessage: (event: { data: object }) => void = () => undefined;
  readonly protocol = "";

  constructor(private readonly answer: (type: string) => object) {}

  send({ header, channel }: KernelMessage.IMessage): void {
    const tell = (of: string, msg_type: string, content: object) =>
      this.onmessage({
        data: {
          header: { ...header, msg_id: `${msg_type} for ${header.msg_id}`, msg_type, session: "of the kernel" },
          parent_header: header,
          metadata: {},
          content,
          channel: of,
        },
      });
    tell("iopub", "status", { execution_state: "busy" });
    tell(channel, header.msg_type.replace("request", "reply"), this.answer(header.msg_type));
    tell("iopub", "status", { execution_state: "idle" });
  }

  close(): void {}
}

function connected(request: () => object = facts) {
  const sockets: StandInSocket[] = [];
  class Socket extends StandInSocket {
    constructor() {
      super((type) => (type === "kernel_info_request" ? LANGUAGE : request()));
      sockets.push(this);
    }
  }
  const serverSettings = ServerConnection.makeSettings({
    WebSocket: Socket as never,
    serializer: { serialize: (message: unknown) => message, deserialize: (data: unknown) => data } as never,
  });
  const kernel = new KernelConnection({
    model: { id: "kernel-1", name: "python3" },
    serverSettings,
    kernelAPIClient: { restart: () => Promise.resolve() } as never,
    kernelSpecAPIClient: { get: () => Promise.reject(new Error("It has none.")) } as never,
  });
  const { statusChanged, connectionStatusChanged, iopubMessage } = kernel;
  const session = { statusChanged, connectionStatusChanged, iopubMessage };
  const link = new LabKernel(session as never, kernel, ends.signal);
  const states: LinkState[] = [link.state];
  link.changes.on(() => link.state !== states.at(-1) && states.push(link.state), ends.signal);
  const open = async () => {
    await vi.advanceTimersByTimeAsync(0); // when it is lost, JupyterLab makes the next one
    sockets.at(-1)?.onopen();
    await vi.advanceTimersByTimeAsync(0);
  };
  const lose = (code: number) => sockets.at(-1)?.onclose({ code });
  ends.signal.addEventListener("abort", () => kernel.dispose());
  return { kernel, link, states, open, lose };
}

let ends = new AbortController();

beforeEach(() => {
  ends = new AbortController();
  vi.useFakeTimers();
  vi.spyOn(console, "warn").mockReturnValue();
  vi.spyOn(console, "debug").mockReturnValue();
});
afterEach(() => {
  ends.abort();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

it("is starting until it is connected for the first time", async () => {
  const { states, open } = connected();

  await open();

  expect(states).toEqual(["starting", "alive"]);
});

it("is disconnected when the network is lost, and also while JupyterLab connects again", async () => {
  const { kernel, states, open, lose } = connected();
  await open();

  lose(1006);
  expect([kernel.status, kernel.connectionStatus]).toEqual(["unknown", "connecting"]);
  await open();

  expect(states).toEqual(["starting", "alive", "disconnected", "alive"]);
});

it("is disconnected when the server closes the connection", async () => {
  const { states, open, lose } = connected();
  await open();

  lose(1001);

  expect(states.at(-1)).toBe("disconnected");
});

it("is starting after it was restarted, until it is connected again", async () => {
  const { kernel, states, open } = connected();
  await open();

  const restarted = kernel.restart();
  await open();
  await restarted;

  expect(states).toEqual(["starting", "alive", "restarting", "starting", "alive"]);
});

it("keeps what is known of the kernel when the network is lost, and tells what has ended meanwhile", async () => {
  let runs = [run()];
  const { link, open, lose } = connected(() => facts({ runs }));
  await open();
  const ended: RunSummary[] = [];
  const talk = new KernelTalk(link, (one) => ended.push(one));
  talk.want(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(talk.heard).toMatchObject({ answer: "ready", runs });

  lose(1006);
  expect(talk.heard).toMatchObject({ link: "disconnected", runs });
  runs = [run({ status: "failed", duration_s: 61 })];
  await open();

  expect(talk.heard).toMatchObject({ link: "alive", answer: "ready", runs });
  expect(ended).toEqual(runs);
  talk.dispose();
});
