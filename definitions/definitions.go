// Package definitions embeds the five definitions of the contest, and those of GDN with more heads, other states and
// more tokens, as <op_type>/<name>.json.
// Interfaces are the contest's; descriptions and references are this project's own. Reading them is workloads' part.
package definitions

import "embed"

// FS holds the definition files.
//
//go:embed */*.json
var FS embed.FS
