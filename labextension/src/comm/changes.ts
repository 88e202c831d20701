/** Whoever wants to know that something has changed. */

export class Changes {
  private readonly callbacks = new Set<() => void>();

  /** Until `until` is aborted. */
  on(callback: () => void, until: AbortSignal): void {
    if (!until.aborted) {
      this.callbacks.add(callback);
      until.addEventListener("abort", () => this.callbacks.delete(callback), { once: true });
    }
  }

  tell(): void {
    for (const callback of [...this.callbacks]) {
      callback();
    }
  }

  get isHeard(): boolean {
    return this.callbacks.size > 0;
  }
}
