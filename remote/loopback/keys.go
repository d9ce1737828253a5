package loopback

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "gpus", Type: remote.IntsKey, Default: "none", Meaning: "ordinals on this machine; each is a place"},
	{Name: "slots", Type: remote.IntKey, Default: "1", Meaning: "jobs at a time, in a table without `gpus`"},
	{Name: "workdir", Type: remote.StringKey, Default: "`remote/loopback` in fisub's cache", Meaning: "folder for the bundle's files and the jobs, absolute"},
}
