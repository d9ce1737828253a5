// Package loopback is the provider that runs jobs on this machine, through the same agent and files as on another host.
// It is for trying out runs, and for tests.
package loopback

import (
	"context"
	"path/filepath"

	"fisub/internal/cache"
	"fisub/remote"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the provider's name in a table.
const Kind = "loopback"

// A Provider runs jobs on this machine.
type Provider struct {
	Config
	*work.Hosts
}

// New returns the provider of the table [remote.name].
func New(name string, c Config) (*Provider, error) {
	move := ""
	if c.Workdir == "" {
		move = "set FISUB_CACHE"
		root, err := cache.Root()
		if err != nil {
			return nil, err
		}
		c.Workdir = filepath.Join(root, "remote", Kind)
	}
	folder := work.New(host.Local{}, "", c.Workdir)
	folder.Move = move
	return &Provider{c, work.NewHosts(Kind, name, func(remote.Place) *work.Folder { return folder }, folder)}, nil
}

// Places returns the GPUs, or the slots.
func (p *Provider) Places(n int) (places []remote.Place) {
	for _, gpu := range p.GPUs {
		places = append(places, remote.Place{Host: "localhost", GPU: gpu})
	}
	switch {
	case len(p.GPUs) > 0:
	case p.Slots == 1:
		places = []remote.Place{{Host: "localhost", GPU: -1}}
	default:
		places = remote.Slots("slot", p.Slots)
	}
	return places[:min(n, len(places))]
}

// Check checks this machine.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	gpus := p.GPUs
	if len(gpus) == 0 {
		gpus = []int{0}
	}
	hosts := p.Ready(ctx, p.Wanted(), gpus)
	hosts[0].Name = "localhost"
	if hosts[0].Err == nil && p.Wanted() == "" {
		hosts[0].Detail = p.Workdir
	}
	return hosts, ctx.Err()
}
