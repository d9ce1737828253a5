package ssh

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "hosts", Type: remote.StringsKey, Default: "must be there", Meaning: `as ssh takes them: "gpu01", "me@gpu01", "me@gpu01:2222"`},
	{Name: "gpus", Type: remote.IntsKey, Default: "[0]", Meaning: "ordinals on each host; each is a place"},
	{Name: "workdir", Type: remote.StringKey, Default: ".cache/fisub/remote", Meaning: "folder on the host for the bundle's files and the jobs: absolute, or below the home folder"},
	{Name: "away", Type: remote.DurationKey, Default: "5m", Meaning: "a host that cannot be reached for so long is lost, and its workloads go elsewhere"},
	{Name: "ssh_config", Type: remote.StringKey, Default: "~/.ssh/config", Meaning: "another file than ~/.ssh/config, absolute"},
}
