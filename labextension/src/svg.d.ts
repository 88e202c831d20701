/** The build puts the text of an icon into the module. */
declare module "*.svg" {
  const text: string;
  export default text;
}
