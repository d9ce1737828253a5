package modal

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "app", Type: remote.StringKey, Default: "fisub", Meaning: "Modal's app; made when it is missing"},
	{Name: "environment", Type: remote.StringKey, Default: "the profile's", Meaning: "Modal's environment"},
	{Name: "volume", Type: remote.StringKey, Default: "as `app`", Meaning: "a volume of version 2; made when it is missing"},
	{Name: "image", Type: remote.StringKey, Default: "debian:13-slim", Meaning: "of a public registry. Modal puts the driver in and the bundle brings the rest, so it needs no CUDA, " +
		"only sh, tar and the core utilities, and a C library not older than that of the machine that fisub was built on"},
	{Name: "cpu", Type: remote.FloatKey, Default: "4", Meaning: "cores of a job's sandbox; Modal bills them beside the GPU"},
	{Name: "memory", Type: remote.IntKey, Default: "8192", Meaning: "MiB of a job's sandbox; Modal bills them beside the GPU"},
	{Name: "regions", Type: remote.StringsKey, Default: "any", Meaning: "Modal's regions. Naming some costs more, and waits longer"},
	{Name: "queue", Type: remote.DurationKey, Default: "30m", Meaning: "how long a job may wait for a GPU; then it is given up"},
	{Name: "jobs", Type: remote.IntKey, Default: "8", Meaning: "sandboxes at a time; a workspace has a limit of its own"},
}
