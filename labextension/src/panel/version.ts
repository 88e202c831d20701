/** The version of this page's half. */
import { version } from "../../../package.json";

export const PANEL_VERSION: string = version;
