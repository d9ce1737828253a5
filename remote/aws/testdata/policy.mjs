// Asks an evaluator of IAM policies what a policy allows: {"policy": ..., "cases": [{principal, action, resource,
// context}]} on stdin, one word for each case on stdout. The folder of the evaluator is the argument.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(process.argv[2] + "/node_modules/"));
const { runSimulation } = require("@cloud-copilot/iam-simulate");
const { policy, cases } = JSON.parse(readFileSync(0, "utf8"));
const accountId = "123456789012";
for (const c of cases) {
  const answer = await runSimulation(
    {
      request: {
        action: c.action,
        principal: `arn:aws:iam::${accountId}:user/${c.principal}`,
        resource: { accountId, resource: c.resource },
        contextVariables: c.context,
      },
      identityPolicies: [{ name: "user", policy }],
      serviceControlPolicies: [],
      resourceControlPolicies: [],
    },
    {},
  );
  console.log(answer.resultType === "error" ? "error: " + JSON.stringify(answer.errors) : answer.overallResult);
}
