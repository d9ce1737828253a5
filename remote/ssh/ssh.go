// Package ssh is the provider for hosts with an SSH login. It runs the system's OpenSSH, so keys, agents, jump hosts
// and host names come from ~/.ssh/config. It never prompts: host keys must be known. An agent on the host runs the jobs
// and survives a lost connection.
package ssh

import (
	"context"

	"fisub/remote"
	"fisub/remote/host"
	"fisub/remote/work"
)

// Kind is the provider's name in a table.
const Kind = "ssh"

// A Provider runs jobs on hosts over SSH.
type Provider struct {
	config Config
	*work.Hosts
}

// New returns the provider of the table [remote.name]. It connects to no host.
func New(name string, c Config) *Provider {
	folders := map[string]*work.Folder{}
	at := func(p remote.Place) *work.Folder { return folders[p.Host] }
	p := &Provider{c, work.NewHosts(Kind, name, at)}
	for _, h := range c.Hosts {
		f := work.New(&host.SSH{Name: h, Config: c.SSHConfig}, h, c.Workdir)
		f.Away, f.Pack = c.Away, true
		f.Check = work.CheckArch("host", "use a fisub built for the host's system")
		folders[h], p.Folders = f, append(p.Folders, f)
	}
	return p
}

// Places returns the GPUs: the first of each host, then the second of each, and so on.
func (p *Provider) Places(n int) (places []remote.Place) {
	for _, gpu := range p.config.GPUs {
		for _, h := range p.config.Hosts {
			places = append(places, remote.Place{Host: h, GPU: gpu})
		}
	}
	return places[:min(n, len(places))]
}

// Check checks each host.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	return p.Ready(ctx, p.config.Wanted(), p.config.GPUs), ctx.Err()
}
