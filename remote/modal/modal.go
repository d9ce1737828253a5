// Package modal runs jobs in sandboxes of Modal (modal.com), through Modal's Go SDK.
//
// A volume holds each file of the bundles once, and the results of jobs. A small sandbox without a GPU copies files to
// and from it, so that no GPU waits for an upload. The GPU sandbox runs the agent as its entry point: once accepted, it
// needs no client and ends by itself. While it runs, Wait follows the event stream in it; afterwards, Wait reads the
// copy on the volume. sandbox.sh holds the commands that run in sandboxes.
package modal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/follow"
	"fisub/remote/work"
)

const (
	// Kind is the provider's kind.
	Kind = "modal"

	// extra is a sandbox's lifetime on top of its job's limit: to verify files, end the job and save its results.
	extra = 3 * time.Minute
	// longest is the longest lifetime that Modal gives a sandbox.
	longest = 24 * time.Hour
	// startLog is the file in a job's folder on the volume with the output of starting its agent.
	startLog = "start.log"
	// soon is how long a sandbox may take to get a machine although its time in the queue is over.
	soon = 3 * time.Second
	// bound is the time limit for work that must continue after its context ends, such as ending a sandbox.
	bound = 30 * time.Second
	// exitDelay is how long a sandbox stays after its job, so that a following client can read the rest.
	exitDelay = 10 * time.Second
	// saveInterval is how often a job's output is saved to the volume. A machine that fails while no client follows
	// the job loses at most this much.
	saveInterval = 10 * time.Second
)

// Tags of sandboxes. A job's labels are tags too, prefixed with tagLabel.
const (
	tagKind  = "fisub"     // "job" or "door"
	tagJob   = "fisub-job" // Job.ID
	tagLabel = "fisub-label-"
)

var (
	sandbox  = plain.NewForm(`^[A-Za-z0-9][A-Za-z0-9_-]{1,79}$`)
	tagValue = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// A Provider runs jobs in sandboxes of one app.
type Provider struct {
	follow.Jobs
	name         string
	config       Config
	client       *sdk.Client
	exitDelay    time.Duration
	saveInterval time.Duration

	mu    sync.Mutex // guards app, image and store
	app   *sdk.App
	image *sdk.Image
	store *sdk.Volume

	folder *work.Folder // on the volume
}

// New returns the provider of the table [remote.name]. It reads Modal's profile, but sends no request.
func New(name string, c Config) (*Provider, error) {
	p := &Provider{name: name, config: c, exitDelay: exitDelay, saveInterval: saveInterval}
	p.Jobs.Starter = p
	p.folder = work.New(&fileHost{p: p}, "", volume)
	p.folder.Away, p.folder.Pack, p.folder.Given, p.folder.Storage = time.Minute, true, true, true
	var err error
	if p.client, err = newClient(c.Environment); err != nil {
		return nil, p.fail(context.Background(), "reading Modal's profile", err)
	}
	return p, nil
}

// Places returns one place for each job that may be in a sandbox at a time.
func (p *Provider) Places(n int) []remote.Place {
	return remote.Slots("sandbox", min(n, p.config.Jobs))
}

// Check reports whether Modal knows the user and the app. Only a sandbox can find out whether a GPU is free.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	host := remote.Host{Name: p.name, State: "ready"}
	var jobs []*sdk.Sandbox
	app, err := p.findApp(ctx)
	if err != nil {
		err = p.fail(ctx, "asking Modal", err)
	} else {
		jobs, err = p.sandboxes(ctx, app, map[string]string{tagKind: "job"})
	}
	switch {
	case ctx.Err() != nil:
		return nil, err
	case err != nil:
		host.State, host.Err = "down", err
	default:
		host.Detail = fmt.Sprintf("app %s, image %s, %d jobs in sandboxes", p.config.App, p.config.Image, len(jobs))
	}
	return []remote.Host{host}, nil
}

// handle is Handle.Data.
type handle struct {
	Sandbox string    `json:"sandbox,omitempty"` // "" if the job only has files on the volume
	App     string    `json:"app"`
	Created time.Time `json:"created,omitzero"` // zero if unknown
}

func (p *Provider) open(h remote.Handle) (handle, error) {
	var d handle
	if err := json.Unmarshal(h.Data, &d); err != nil {
		return d, fmt.Errorf("%s: handle: %w", p.name, err)
	}
	switch {
	case h.Provider != Kind:
		return d, fmt.Errorf("%s: handle: a job of provider %.30q", p.name, h.Provider)
	case !remote.ValidID(h.Job) || d.Sandbox != "" && !sandbox.MatchString(d.Sandbox):
		return d, fmt.Errorf("%s: handle: no job and sandbox", p.name)
	case d.App != p.config.App:
		return d, p.deny("no-such", fmt.Sprintf("write app = %.60q in [remote.%s]", d.App, p.name),
			"the job is in app %.60q, but the table has %q", d.App, p.config.App)
	}
	return d, nil
}

// Fault implements follow.Starter: the other methods have reworded the errors of Modal.
func (p *Provider) Fault(ctx context.Context, _ remote.Place, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
	return err
}

// fault rewords an error of the files on the volume.
func (p *Provider) fault(ctx context.Context, err error) error {
	return work.Fault(ctx, p.name, "", err)
}

// Start implements follow.Starter. It uploads missing files through the sandbox for files, and queues a sandbox that
// runs the agent.
func (p *Provider) Start(
	ctx context.Context, job *remote.Job, progress func(sent, total int64),
) (h remote.Handle, err error) {
	program, err := p.accept(job)
	if err != nil {
		return h, err
	}
	if _, err := p.folder.Place(ctx, job, progress); err != nil {
		return h, p.fault(ctx, err)
	}
	d := handle{App: p.config.App}
	if d.Sandbox, err = p.create(ctx, job, program); err == nil {
		d.Created = time.Now().UTC().Truncate(time.Second)
	}
	return remote.NewHandle(Kind, job.ID, job.Place, d), err // with an error Modal may still have queued the sandbox
}

// at returns a job's folder on the volume.
func (p *Provider) at(job, key string) *work.FolderJob {
	return &work.FolderJob{Host: p.folder.Host, ID: job, Key: key, Work: volume}
}

// accept rejects jobs that no sandbox could run, and returns the hash of the program.
func (p *Provider) accept(job *remote.Job) (program string, err error) {
	f, err := job.Program()
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.name, err)
	}
	if job.Limit > longest-extra {
		return "", p.deny("limit", "set a shorter limit, or use --shards",
			"a sandbox lives at most %v: limit %v is too long", longest, job.Limit)
	}
	if _, ok := gpuNames[job.GPU]; !ok {
		kinds := strings.Join(slices.Sorted(maps.Keys(gpuNames))[1:], ", ")
		return "", p.deny("no-such", "it has "+kinds+": modal.com/docs/guide/gpu", "Modal has no GPU %.60q", job.GPU)
	}
	return f.SHA256, nil
}

// prepare looks up the app, the volume and the image, once.
func (p *Provider) prepare(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.image != nil {
		return nil
	}
	app, err := p.findApp(ctx)
	if err != nil {
		return p.fail(ctx, "asking for app "+p.config.App, err)
	}
	store, err := p.client.Volumes.FromName(ctx, p.config.Volume,
		&sdk.VolumeFromNameParams{CreateIfMissing: true, Environment: p.config.Environment, Version: 2})
	if err != nil {
		return p.fail(ctx, "asking for volume "+p.config.Volume, err)
	}
	ctx, seen := spy(ctx)
	image, err := p.client.Images.FromRegistry(p.config.Image, nil).Build(ctx, app, nil)
	if err != nil {
		if text := seen.buildLog(); text != "" && ctx.Err() == nil {
			return p.deny("image", "set another image in remote."+p.name+".image",
				"building image %s: %s\n%s", p.config.Image, words(err), text)
		}
		return p.fail(ctx, "building image "+p.config.Image, err)
	}
	p.app, p.store, p.image = app, store, image
	return nil
}

func (p *Provider) findApp(ctx context.Context) (*sdk.App, error) {
	params := &sdk.AppFromNameParams{CreateIfMissing: true, Environment: p.config.Environment}
	return p.client.Apps.FromName(ctx, p.config.App, params)
}

// create queues the sandbox of a job. It returns when Modal has accepted it, before Modal has found a GPU.
func (p *Provider) create(ctx context.Context, job *remote.Job, program string) (string, error) {
	tags := map[string]string{tagKind: "job", tagJob: job.ID}
	for k, v := range job.Labels {
		tags[tagLabel+clean(k)] = clean(v)
	}
	stay, every := fmt.Sprint(int(p.exitDelay.Seconds())), fmt.Sprint(max(1, int(2*p.saveInterval.Seconds())))
	sb, err := p.client.Sandboxes.Create(accepting(ctx), p.app, p.image, &sdk.SandboxCreateParams{
		GPU:            gpuNames[job.GPU],
		CPU:            p.config.CPU,
		CPULimit:       p.config.CPU, // without limits, usage above the requested cores and memory is billed too
		MemoryMiB:      p.config.Memory,
		MemoryLimitMiB: p.config.Memory,
		Timeout:        (job.Limit + extra).Truncate(time.Second),
		Command:        script("entry", job.ID, program, stay, every),
		Volumes:        map[string]*sdk.Volume{volume: p.store},
		BlockNetwork:   true,
		Regions:        p.config.Regions,
		Tags:           tags,
	})
	if err != nil {
		return "", p.fail(ctx, "creating a sandbox", err)
	}
	defer sb.Detach()
	if !sandbox.MatchString(sb.SandboxID) {
		return "", fmt.Errorf("%s: creating a sandbox: invalid id %.80q", p.name, sb.SandboxID)
	}
	return sb.SandboxID, nil
}

func clean(s string) string {
	s = tagValue.ReplaceAllString(s, "-")
	return s[:min(len(s), 63)]
}

// gpuNames maps kinds of GPU to Modal's names for exactly one model, from https://modal.com/docs/guide/gpu. Modal may
// run "H100" without the mark on an H200, and "A100" without a size on either size.
var gpuNames = map[string]string{"": "", "t4": "T4", "l4": "L4", "a10": "A10", "l40s": "L40S", "a100": "A100-80GB",
	"h100": "H100!", "h200": "H200", "b200": "B200"}

// Stop implements follow.Starter. It ends the sandbox and removes the job's folder on the volume.
func (p *Provider) Stop(ctx context.Context, h remote.Handle) (removed bool, err error) {
	d, err := p.open(h)
	if err != nil {
		return false, err
	}
	var all []*sdk.Sandbox
	if d.Sandbox != "" {
		sb, err := p.client.Sandboxes.FromID(ctx, d.Sandbox, nil)
		if err != nil {
			return false, p.fail(ctx, "finding sandbox "+d.Sandbox, err)
		}
		all = append(all, sb)
	} else if err = p.prepare(ctx); err == nil {
		all, err = p.sandboxes(ctx, p.app, map[string]string{tagKind: "job", tagJob: h.Job})
	}
	for _, sb := range all {
		err = errors.Join(err, p.terminate(ctx, sb))
	}
	if err != nil {
		return false, err
	}
	return true, p.fault(ctx, p.at(h.Job, "").Remove(ctx))
}

// terminate ends a sandbox and waits for it. A sandbox that is unknown or has ended is not an error.
func (p *Provider) terminate(ctx context.Context, sb *sdk.Sandbox) error {
	defer sb.Detach()
	if end, err := p.ended(ctx, sb); err != nil || end != nil {
		return err
	}
	if _, err := sb.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: true}); err != nil && !gone(err) {
		return p.fail(ctx, "ending sandbox "+sb.SandboxID, err)
	}
	return nil
}

// List returns the app's jobs that are queued or in sandboxes, and ended jobs with files on the volume.
func (p *Provider) List(ctx context.Context) ([]remote.Handle, error) {
	if err := p.prepare(ctx); err != nil {
		return nil, err
	}
	all, err := p.sandboxes(ctx, p.app, map[string]string{tagKind: "job"})
	if err != nil {
		return nil, err
	}
	var list []remote.Handle
	seen := map[string]bool{}
	add := func(job, id string) {
		if !seen[job] && remote.ValidID(job) {
			d := handle{Sandbox: id, App: p.config.App}
			list = append(list, remote.NewHandle(Kind, job, remote.Place{GPU: -1}, d))
		}
		seen[job] = true
	}
	for _, sb := range all {
		tags, err := sb.GetTags(ctx, nil)
		sb.Detach()
		if err == nil {
			add(tags[tagJob], sb.SandboxID)
		} else if !gone(err) {
			return nil, p.fail(ctx, "reading the tags of sandbox "+sb.SandboxID, err)
		}
	}
	folders, _, err := p.folder.List(ctx)
	for _, j := range folders {
		add(j.ID, "")
	}
	return list, p.fault(ctx, err)
}

func (p *Provider) sandboxes(ctx context.Context, app *sdk.App, tags map[string]string) ([]*sdk.Sandbox, error) {
	params := &sdk.SandboxListParams{AppID: app.AppID, Tags: tags, Environment: p.config.Environment}
	seq, err := p.client.Sandboxes.List(ctx, params)
	if err != nil {
		return nil, p.fail(ctx, "listing sandboxes", err)
	}
	var all []*sdk.Sandbox
	for sb, err := range seq {
		if err != nil {
			return nil, p.fail(ctx, "listing sandboxes", err)
		}
		all = append(all, sb)
	}
	return all, nil
}

// Collect copies the job's log into dst. That of a running job is as old as the last save to the volume.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	if _, err := p.open(h); err != nil {
		return err
	}
	return p.fault(ctx, p.at(h.Job, "").Collect(ctx, dst, startLog))
}

// Close ends the sandbox for files and the connections.
func (p *Provider) Close() error {
	err := p.folder.Host.Close()
	p.client.Close()
	return err
}
