package slurm

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "login", Type: remote.StringKey, Default: "this machine", Meaning: "host with Slurm's commands, as ssh takes it: `ssh HOST squeue` must work without a question"},
	{Name: "ssh_config", Type: remote.StringKey, Default: "your own", Meaning: "file for `ssh -F`, an absolute path"},
	{Name: "workdir", Type: remote.StringKey, Default: "~/.cache/fisub/remote", Meaning: "folder for bundles and jobs; absolute or below `~/` of the login host; shared with the compute nodes"},
	{Name: "partition", Type: remote.StringKey, Default: "the cluster's", Meaning: "as for sbatch"},
	{Name: "account", Type: remote.StringKey, Default: "the cluster's", Meaning: "as for sbatch"},
	{Name: "qos", Type: remote.StringKey, Default: "the cluster's", Meaning: "as for sbatch"},
	{Name: "constraint", Type: remote.StringKey, Default: "the cluster's", Meaning: "as for sbatch"},
	{Name: "gres", Type: remote.StringKey, Default: "one GPU of the job's kind: `gpu:b200:1`", Meaning: "where the cluster names its GPUs in another way: `gpu:nvidia_b200:1`, `gpu:1`"},
	{Name: "sbatch", Type: remote.StringsKey, Default: "none", Meaning: "more options by their long names: `[\"--mem=64G\", \"--cpus-per-task=8\", \"--exclusive\", \"--reservation=me\"]`"},
	{Name: "jobs", Type: remote.IntKey, Default: "4", Meaning: "how many jobs of one run may be in the queue at a time"},
}
