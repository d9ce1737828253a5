// Package baselines holds the solutions that fisub ships to compare others with, each a submission in a folder of its
// own.
package baselines

import "embed"

// FS has a folder for each baseline, as it stands in the repository.
//
//go:embed */config.toml */solution
var FS embed.FS
