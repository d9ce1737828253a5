// Package definitions embeds the five definitions of the contest, and variants of GDN with more heads, other states
// and more tokens, as <op_type>/<name>.json. The interfaces are the contest's; descriptions and references are this
// project's own. Package workloads reads them. scripts/definitions writes all definitions of gdn: none is the contest's
// text. The others have little in common and are edited by hand.
package definitions

//go:generate go run fisub/scripts/definitions

import "embed"

// FS holds the definition files.
//
//go:embed */*.json
var FS embed.FS
