// Package providers lists all kinds of provider.
package providers

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/remote"
	"fisub/remote/aws"
	"fisub/remote/kubernetes"
	"fisub/remote/loopback"
	"fisub/remote/modal"
	"fisub/remote/slurm"
	"fisub/remote/ssh"
)

// All maps each kind to a function that returns its empty Config.
var All = map[string]func() remote.Config{
	aws.Kind:        func() remote.Config { return new(aws.Config) },
	kubernetes.Kind: func() remote.Config { return new(kubernetes.Config) },
	loopback.Kind:   func() remote.Config { return new(loopback.Config) },
	modal.Kind:      func() remote.Config { return new(modal.Config) },
	slurm.Kind:      func() remote.Config { return new(slurm.Config) },
	ssh.Kind:        func() remote.Config { return new(ssh.Config) },
}

// Names returns all kinds, sorted.
func Names() []string { return slices.Sorted(maps.Keys(All)) }

// Keys returns the keys of a table [remote.NAME] by kind; common keys are under "".
func Keys() map[string][]config.Key {
	keys := map[string][]config.Key{"": new(remote.Common).CommonKeys()}
	for kind, fresh := range All {
		keys[kind] = fresh().Keys()
	}
	return keys
}

// Decode reads a table [remote.NAME].
func Decode(t *config.Table) (remote.Config, error) {
	kind := remote.Kind(t)
	fresh, ok := All[kind]
	if !ok {
		t.Fault("provider", "one of "+strings.Join(Names(), ", "), "unknown provider %q", kind)
		return nil, usage.Invalid(t.Err())
	}
	c := fresh()
	return c, usage.Invalid(remote.Decode(t, c))
}

// HostPrefix begins the name of a table that the config does not contain: "ssh:me@gpu01" is a table of kind ssh with
// that host and the defaults of the kind. The plan of a run stores such a name, so that later commands find the host.
const HostPrefix = ssh.Kind + ":"

// implied returns the table that name means without an entry in the config, or nil: a host, or the defaults of a kind.
func implied(name string) *config.Table {
	if host, ok := strings.CutPrefix(name, HostPrefix); ok {
		return config.NewTable("remote."+name, map[string]any{"provider": ssh.Kind, "hosts": []any{host}})
	}
	if All[name] != nil {
		return config.NewTable("remote."+name, nil)
	}
	return nil
}

// Unconfigured returns the names of the tables, of those that need no entry in the config, whose service this machine
// is set up to use: modal with a token, and slurm if Slurm's commands find a cluster.
func Unconfigured() (names []string) {
	if modal.Configured() {
		names = append(names, modal.Kind)
	}
	if slurm.Configured() {
		names = append(names, slurm.Kind)
	}
	return names
}

// Open opens the provider of the table [remote.NAME]; gpu, if not "", overrides the table's. Some names need no table
// in the config.
func Open(tables map[string]*config.Table, name, gpu string) (remote.Provider, remote.Common, error) {
	table, ok := tables[name]
	if !ok {
		if table = implied(name); table == nil {
			known := slices.Sorted(maps.Keys(tables))
			hint := "see fisub help remote; known tables: " + cmp.Or(strings.Join(known, ", "), "none") + ", and loopback"
			if near := plain.Nearest(name, known); len(near) > 0 {
				hint = "did you mean " + near[0] + "?"
			}
			return nil, remote.Common{}, usage.Errorf(hint, "no table [remote.%s] in the config", name)
		}
	}
	conf, err := Decode(table)
	if err != nil {
		return nil, remote.Common{}, err
	}
	common := *conf.Shared()
	conf.Shared().GPU = cmp.Or(gpu, common.GPU)
	p, err := conf.Open(name)
	return p, common, usage.Invalid(err)
}

// A Set holds open providers by the name of their table.
type Set map[string]remote.Provider

// Close closes all providers.
func (s Set) Close() {
	for _, p := range s {
		_ = p.Close()
	}
}

// OpenAll opens the providers of the named tables and returns the tables' common keys too.
func OpenAll(tables map[string]*config.Table, names []string, gpu string) (Set, map[string]remote.Common, error) {
	open, commons := Set{}, map[string]remote.Common{}
	var faults []error
	for _, name := range names {
		p, common, err := Open(tables, name, gpu)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		open[name], commons[name] = p, common
	}
	if err := errors.Join(faults...); err != nil {
		open.Close()
		return nil, nil, err
	}
	return open, commons, nil
}
