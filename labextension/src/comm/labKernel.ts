/** A kernel's connection of JupyterLab, as the panel uses it. It sends nothing but messages to that kernel. */
import type { ISessionContext } from "@jupyterlab/apputils";
import { type Kernel, KernelMessage } from "@jupyterlab/services";
import type { PanelRequest } from "../protocol/decodePanel";
import { Changes } from "./changes";
import { type CommMessage, type KernelLink, type LinkState, REQUEST, TARGET } from "./kernelLink";

/** A kernel without us never answers: then nothing is to be kept for it for ever. */
const FORGET_REQUEST_MS = 120_000;
/** So long a free shell may take to tell about itself. */
const SHELL_ANSWERS_MS = 2000;
/** A cell that fails or is interrupted has the kernel drop what waits behind it. */
const LOAD_TRIES = 5;

type ControlMessage = KernelMessage.IControlMessage<KernelMessage.ControlMessageType>;

export class LabKernel implements KernelLink {
  readonly changes = new Changes();
  executes: boolean;
  private hasNoted = false;
  /** To the process that runs now. */
  private wasConnected: boolean;

  /** Until `until` is aborted, which has to be when the kernel of the session is another one. */
  constructor(
    private readonly session: ISessionContext,
    private readonly kernel: Kernel.IKernelConnection,
    until: AbortSignal,
  ) {
    this.executes = kernel.status === "busy";
    this.wasConnected = kernel.connectionStatus === "connected";
    if (kernel.status === "unknown") {
      this.watchShell(until);
    }
    // The kernel opens a comm of this target; a page that does not know the target would close it.
    const adopt = () => undefined;
    kernel.registerCommTarget(TARGET, adopt);
    session.statusChanged.connect(this.stateChanged, this);
    session.connectionStatusChanged.connect(this.stateChanged, this);
    session.iopubMessage.connect(this.noteExecution, this);
    until.addEventListener("abort", () => {
      session.statusChanged.disconnect(this.stateChanged, this);
      session.connectionStatusChanged.disconnect(this.stateChanged, this);
      session.iopubMessage.disconnect(this.noteExecution, this);
      if (!kernel.isDisposed) {
        kernel.removeCommTarget(TARGET, adopt);
      }
    });
  }

  get state(): LinkState {
    const { status, connectionStatus, isDisposed } = this.kernel;
    if (status === "dead" || isDisposed) {
      return "dead";
    }
    if (status === "restarting" || status === "autorestarting" || status === "terminating") {
      return "restarting";
    }
    if (connectionStatus !== "connected") {
      // A connection that is lost is "connecting", too: JupyterLab tries again at once.
      return connectionStatus === "connecting" && !this.wasConnected ? "starting" : "disconnected";
    }
    // To a page that was loaded while a cell blocks the shell, the status is not known until that has ended.
    return status === "starting" ? "starting" : "alive";
  }

  async language(): Promise<string> {
    // The kernel itself tells it by its shell only, which may be busy.
    const spec = await this.kernel.spec.catch(() => undefined);
    return spec?.language || (await this.languageOfShell());
  }

  private languageOfShell(): Promise<string> {
    const told = this.kernel.info.then((info) => info.language_info?.name ?? "");
    const late = new Promise<string>((resolve) => setTimeout(() => resolve(""), SHELL_ANSWERS_MS));
    // It is rejected by a kernel that has gone, or answers with an error.
    return Promise.race([told.catch(() => ""), late]);
  }

  request(content: PanelRequest): Promise<unknown> {
    if (this.state !== "alive") {
      return Promise.resolve(undefined);
    }
    // JupyterLab's types know its own messages only; the protocol lets a kernel have more.
    const message = {
      ...KernelMessage.createMessage({
        msgType: "interrupt_request",
        channel: "control",
        username: this.kernel.username,
        session: this.kernel.clientId,
        content: {},
      }),
      content,
    } as unknown as ControlMessage;
    (message.header as { msg_type: string }).msg_type = REQUEST;
    const future = this.kernel.sendControlMessage(message, true, true);
    return new Promise((resolve) => {
      const timer = setTimeout(() => future.dispose(), FORGET_REQUEST_MS);
      future.onReply = (reply) => resolve(reply.content);
      // It is rejected when the kernel has gone before it could answer.
      future.done.catch(() => resolve(undefined)).finally(() => clearTimeout(timer));
    });
  }

  async hasComm(): Promise<boolean> {
    const reply = await this.kernel.requestCommInfo({ target_name: TARGET });
    return reply.content.status === "ok" && Object.keys(reply.content.comms).length > 0;
  }

  async loadExtension(): Promise<string> {
    const code = "%load_ext accel_nb";
    for (let tries = 0; tries < LOAD_TRIES; tries++) {
      const { content } = await this.kernel.requestExecute({ code, silent: true, store_history: false }).done;
      if (content.status === "ok") {
        return "";
      }
      if (content.status === "error") {
        return `${content.ename}: ${content.evalue}`;
      }
    }
    return "it has dropped the request, as the cells before it failed";
  }

  /** JupyterLab complains of messages of a comm that it does not know. */
  listenTo(commId: string): void {
    if (this.kernel.handleComms && !this.kernel.hasComm(commId)) {
      this.kernel.createComm(TARGET, commId);
    }
  }

  onComm(callback: (message: CommMessage) => void, until: AbortSignal): void {
    const hear = (_: ISessionContext, message: KernelMessage.IMessage) => {
      if (KernelMessage.isCommOpenMsg(message)) {
        callback({ kind: "opened", target: message.content.target_name });
      } else if (KernelMessage.isCommMsgMsg(message)) {
        callback({ kind: "data", commId: message.content.comm_id, data: message.content.data });
      } else if (KernelMessage.isCommCloseMsg(message)) {
        callback({ kind: "closed", commId: message.content.comm_id });
      }
    };
    this.session.iopubMessage.connect(hear);
    until.addEventListener("abort", () => this.session.iopubMessage.disconnect(hear));
  }

  private stateChanged(): void {
    if (this.state === "restarting") {
      this.wasConnected = false;
    } else if (this.kernel.connectionStatus === "connected") {
      this.wasConnected = true;
    }
    if (this.state !== "alive") {
      this.executes = false;
    }
    this.changes.tell();
  }

  /** What a cell began and ended: the kernel's status is of its last message, whatever that was. */
  private noteExecution(_: ISessionContext, message: KernelMessage.IMessage): void {
    const parent = message.parent_header;
    if (KernelMessage.isStatusMsg(message) && "msg_type" in parent && parent.msg_type === "execute_request") {
      this.hasNoted = true;
      this.executes = message.content.execution_state === "busy";
      this.changes.tell();
    }
  }

  /** The page has come later than the kernel's last status. Its shell tells about itself unless a cell blocks it. */
  private watchShell(until: AbortSignal): void {
    const note = (executes: boolean) => {
      if (!this.hasNoted && !until.aborted) {
        this.executes = executes && this.state === "alive";
        this.changes.tell();
      }
    };
    const timer = setTimeout(() => note(true), SHELL_ANSWERS_MS);
    until.addEventListener("abort", () => clearTimeout(timer));
    void this.kernel.info.then(() => {
      clearTimeout(timer);
      note(false);
    });
  }
}
