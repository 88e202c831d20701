/** The plugins of the prebuilt extension. */
import { panelPlugin } from "./plugins/panel";

export default [panelPlugin];
