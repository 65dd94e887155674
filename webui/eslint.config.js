import { readdirSync } from "node:fs";

import js from "@eslint/js";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

const features = readdirSync(`${import.meta.dirname}/src/features`);

const climbing = { regex: "^\\.\\./", message: "Import from other folders through @/." };

/** Forbids the files of a folder to import what matches `forbidden`, a pattern of paths below src/. */
const mayNotImport = (folder, forbidden, message) => ({
  files: [`${folder}/**/*.{ts,tsx}`],
  rules: { "no-restricted-imports": ["error", { patterns: [climbing, { regex: `^@/(${forbidden})(/|$)`, message }] }] },
});

export default tseslint.config(
  { ignores: ["node_modules", "src/api/schema.gen.ts"] },
  js.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  reactHooks.configs.flat.recommended,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-misused-promises": ["error", { checksVoidReturn: { attributes: false } }],
      "@typescript-eslint/only-throw-error": "off", // the router's redirects are thrown objects
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  { files: ["*.js", "*.config.ts"], extends: [tseslint.configs.disableTypeChecked] },

  // The direction of dependencies: api and format <- components <- features <- routes <- main.
  { files: ["src/**/*.{ts,tsx}"], rules: { "no-restricted-imports": ["error", { patterns: [climbing] }] } },
  mayNotImport("src/{api,format}", "components|features|routes", "Only what stands above may import this layer."),
  mayNotImport("src/components", "features|routes", "Shared components know no feature and no route."),
  ...features.map((feature) =>
    mayNotImport(
      `src/features/${feature}`,
      `routes|features/(?!${feature}(/|$))[^/]+`,
      "Features do not import each other, nor routes: a route puts them together.",
    ),
  ),
);
