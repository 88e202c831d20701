/** The style sheets that the prebuilt extension brings. */
import "./run.css";
import "./panel.css";
