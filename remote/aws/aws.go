// Package aws runs jobs of a Batch queue in an AWS account. A job reads its bundle from an S3 bucket and writes its
// results there through links that expire, so a host needs no credentials and accepts no connections. The package
// creates no bucket, queue or role; scripts/aws/template.yaml does.
package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/batch"
	"github.com/aws/aws-sdk-go-v2/service/batch/types"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/aws/mailbox"
	"fisub/remote/follow"
)

// Kind is the provider's name in config.toml and in handles.
const Kind = "aws"

// extra is the time a job gets on top of its limit, to fetch the bundle, end, and write its results.
const extra = 15 * time.Minute

// A Provider is the remote.Provider of one table of the config.
type Provider struct {
	follow.Jobs
	name   string
	config Config
	poll   time.Duration // between reads of the bucket
	query  time.Duration // between queries of the job's state
	dial   dialer        // nil for the default
	turn   chan struct{} // held by the Submit that is uploading

	mu      sync.Mutex
	clients map[string]*account // by region
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns the provider of the table [remote.name]. It connects to nothing.
func New(name string, c Config) *Provider {
	p := &Provider{name: name, config: c, poll: time.Second, query: 5 * time.Second, turn: make(chan struct{}, 1),
		clients: map[string]*account{}}
	p.Jobs.Starter = p
	return p
}

// Close closes idle connections.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.clients {
		if c, ok := a.http.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}
	return nil
}

// An account holds the clients of one region.
type account struct {
	region string
	http   aws.HTTPClient
	creds  aws.CredentialsProvider
	s3     *s3.Client
	batch  *batch.Client
	logs   *cloudwatchlogs.Client
}

// account returns the clients of a region ("" for the config's) after checking that there are credentials.
func (p *Provider) account(ctx context.Context, region string) (*account, error) {
	a, err := p.client(ctx, cmp.Or(region, p.config.Region))
	if err == nil {
		_, err = a.creds.Retrieve(ctx)
	}
	if err != nil {
		return nil, p.setup(ctx, err)
	}
	return a, nil
}

func (p *Provider) client(ctx context.Context, region string) (*account, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.clients[region]; a != nil {
		return a, nil
	}
	client := awshttp.NewBuildableClient()
	if p.dial != nil {
		client = client.WithTransportOptions(func(t *http.Transport) { t.DialContext = p.dial })
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(region),
		awsconfig.WithSharedConfigProfile(p.config.Profile), awsconfig.WithHTTPClient(client))
	if err != nil {
		return nil, err
	}
	if cfg.Region == "" {
		return nil, p.deny("no-such", "set remote."+p.name+".region or AWS_REGION", "no AWS region")
	}
	// The SDK has applied AWS_CA_BUNDLE. All services share one connection pool, which Close empties.
	if c, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		cfg.HTTPClient = c.Freeze()
	}
	quiet := func(o *s3.Options) { o.DisableLogOutputChecksumValidationSkipped = true }
	a := &account{region: cfg.Region, http: cfg.HTTPClient, creds: cfg.Credentials, s3: s3.NewFromConfig(cfg, quiet),
		batch: batch.NewFromConfig(cfg), logs: cloudwatchlogs.NewFromConfig(cfg)}
	p.clients[region], p.clients[cfg.Region] = a, a
	return a, nil
}

// setup returns the error for missing configuration or credentials of the AWS tools.
func (p *Provider) setup(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.As(err, new(*remote.Denied)) {
		return p.denied(ctx, "", err)
	}
	const hint = "set up credentials as for the AWS tools (`aws configure`, `aws sso login`, AWS_PROFILE, " +
		"AWS_ACCESS_KEY_ID)"
	return p.deny("credentials", hint, "%v", err)
}

// data is Handle.Data. The job's folder has a copy, so any client can find the job.
type data struct {
	Region string        `json:"region"`
	Bucket string        `json:"bucket"`
	Prefix string        `json:"prefix"`
	Queue  string        `json:"queue"`
	ID     string        `json:"id,omitempty"` // of the Batch job; "" if it must be looked up by the job's name
	Limit  time.Duration `json:"limit"`
	At     time.Time     `json:"at"`             // time of the Submit
	Until  time.Time     `json:"until,omitzero"` // when the job's links expire
	job    string
}

func (d *data) folder() string { return d.Prefix + "jobs/" + d.job + "/" }

// open decodes a handle and returns its account.
func (p *Provider) open(ctx context.Context, h remote.Handle) (*account, *data, error) {
	d := &data{job: h.Job}
	if err := json.Unmarshal(h.Data, d); err != nil || h.Provider != Kind || !remote.ValidID(h.Job) || d.Queue == "" ||
		!bucketName.MatchString(d.Bucket) || !validPrefix(d.Prefix) {
		return nil, nil, fmt.Errorf("%s: the handle of %.80q is not from AWS Batch", p.name, h.Job)
	}
	a, err := p.account(ctx, d.Region)
	return a, d, err
}

func (d *data) handle(place remote.Place) remote.Handle {
	return remote.NewHandle(Kind, d.job, place, d)
}

// Places returns at most as many places as the config allows jobs in the queue at a time.
func (p *Provider) Places(n int) []remote.Place { return remote.Slots("slot", min(n, p.config.Slots)) }

// Check reports whether the bucket is readable and the queue would accept a job.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	a, err := p.account(ctx, "")
	if err != nil {
		return nil, err
	}
	host, err := p.check(ctx, a)
	about := host.Name
	if err == nil {
		about = "bucket " + p.config.Bucket
		_, err = a.s3.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &p.config.Bucket, Prefix: &p.config.Prefix,
			MaxKeys: aws.Int32(1)})
	}
	if err = p.denied(ctx, about, err); ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		host.State, host.Err = "down", err
	}
	return []remote.Host{host}, nil
}

// Fault implements follow.Starter: the other methods have reworded the errors of AWS.
func (p *Provider) Fault(ctx context.Context, _ remote.Place, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
	return err
}

// Start implements follow.Starter. It uploads the bundle and starts the job.
func (p *Provider) Start(
	ctx context.Context, job *remote.Job, progress func(sent, total int64),
) (h remote.Handle, err error) {
	program, err := job.Program()
	if err != nil {
		return h, fmt.Errorf("%s: %w", p.name, err)
	}
	if job.Limit > week/2 {
		return h, fmt.Errorf("%s: job limit %v is above %v", p.name, job.Limit, week/2)
	}
	a, err := p.account(ctx, "")
	if err != nil {
		return h, err
	}
	life, err := p.life(ctx, a, job)
	if err != nil {
		return h, err
	}
	d := &data{Region: a.region, Bucket: p.config.Bucket, Prefix: p.config.Prefix, Queue: p.config.Queue,
		Limit: job.Limit, At: time.Now().UTC().Truncate(time.Second), job: job.ID}
	d.Until = d.At.Add(life)
	b := &bucket{a.s3, p.config.Bucket}
	if err := p.send(ctx, b, job, progress); err != nil {
		return h, p.denied(ctx, "bucket "+b.name, err)
	}
	boot, err := p.post(ctx, b, d, job, program.SHA256, life)
	if err != nil {
		return d.handle(job.Place), p.denied(ctx, "bucket "+b.name, err)
	}
	d.ID, err = p.start(ctx, a, job, program.SHA256, boot)
	return d.handle(job.Place), p.denied(ctx, "", err)
}

// life returns how long the links of a job must stay valid. If the credentials expire before the queue limit is over,
// life is shorter; if they expire before the job could be over, it returns an error.
func (p *Provider) life(ctx context.Context, a *account, job *remote.Job) (time.Duration, error) {
	need, most := job.Limit+extra, job.Limit+extra+p.config.QueueLimit
	creds, err := a.creds.Retrieve(ctx)
	if err != nil {
		return 0, p.setup(ctx, err)
	}
	if !creds.CanExpire {
		return min(most, week-time.Minute), nil
	}
	left := time.Until(creds.Expires)
	if left < need {
		return 0, p.deny("credentials", "renew them with a longer session, or set a lower limit",
			"the credentials end at %s, before a job of %v could be over", creds.Expires.UTC().Format(time.RFC3339), job.Limit)
	}
	return min(most, left), nil
}

// Source implements follow.Starter. The event stream is copied from the bucket while the host writes it.
func (p *Provider) Source(ctx context.Context, h remote.Handle) (follow.Source, follow.Rules, error) {
	a, d, err := p.open(ctx, h)
	if err != nil {
		return nil, follow.Rules{}, err
	}
	s := &source{p: p, a: a, d: d, b: &bucket{a.s3, d.Bucket}, folder: d.folder() + "out/",
		seal: remote.Seal{Key: h.Key, Job: d.job}}
	return s, follow.Rules{Read: p.poll, Query: p.query, Slow: p.query, Away: follow.Forever}, nil
}

// Collect fetches the log. If the job never started, the log is the container's output from CloudWatch.
func (p *Provider) Collect(ctx context.Context, h remote.Handle, dst string) error {
	a, d, err := p.open(ctx, h)
	if err != nil {
		return err
	}
	b := &bucket{a.s3, d.Bucket}
	log, err := b.get(ctx, d.folder()+"out/"+mailbox.Log, mailbox.MaxPiece)
	if code(err) == "NoSuchKey" {
		log, err = []byte(strings.Join(append(p.words(ctx, a, d), ""), "\n")), nil
	}
	if err != nil {
		return p.denied(ctx, "bucket "+b.name, err)
	}
	return plain.WriteFile(filepath.Join(dst, mailbox.Log), log, 0o644)
}

// Stop implements follow.Starter. The stop object also ends the job if AWS does not let this client do so. The folder
// is deleted once the agent has written its exit: a host that starts later finds no job there, and ends.
func (p *Provider) Stop(ctx context.Context, h remote.Handle) (removed bool, err error) {
	a, d, err := p.open(ctx, h)
	if err != nil {
		return false, err
	}
	b := &bucket{a.s3, d.Bucket}
	stopErr := p.denied(ctx, "bucket "+b.name, b.put(ctx, d.folder()+"stop", []byte("stop\n")))
	if err := a.stop(ctx, d); err != nil {
		return false, errors.Join(p.denied(ctx, "", err), stopErr)
	}
	_, err = b.get(ctx, d.folder()+"out/"+mailbox.Exit, 64<<10)
	if code(err) == "NoSuchKey" {
		if s, err := a.jobStatus(ctx, d); err == nil && !s.Over {
			return false, nil
		}
	}
	return true, p.denied(ctx, "bucket "+b.name, b.clear(ctx, d.folder()))
}

// List returns the jobs that have a folder under the prefix, and running jobs without one.
func (p *Provider) List(ctx context.Context) ([]remote.Handle, error) {
	a, err := p.account(ctx, "")
	if err != nil {
		return nil, err
	}
	b := &bucket{a.s3, p.config.Bucket}
	handles, err := b.handles(ctx, p.config.Prefix+"jobs/")
	if err != nil {
		return nil, p.denied(ctx, "bucket "+b.name, err)
	}
	running := map[string]string{}
	err = a.list(ctx, p.config.Queue, strings.TrimSuffix(jobPrefix, "-")+"*", func(job string, j types.JobSummary) {
		if !over(j) {
			running[job] = aws.ToString(j.JobId)
		}
	})
	if err != nil {
		return nil, p.denied(ctx, "", err)
	}
	for i, h := range handles {
		d := &data{job: h.Job}
		if json.Unmarshal(h.Data, d) == nil && d.Queue == p.config.Queue && d.ID == "" && running[h.Job] != "" {
			d.ID = running[h.Job]
			handles[i] = d.handle(h.Place)
		}
		delete(running, h.Job)
	}
	for job, id := range running {
		d := &data{Region: a.region, Bucket: p.config.Bucket, Prefix: p.config.Prefix, Queue: p.config.Queue,
			ID: id, job: job}
		handles = append(handles, d.handle(remote.Place{GPU: -1}))
	}
	slices.SortFunc(handles, func(a, b remote.Handle) int { return strings.Compare(a.Job, b.Job) })
	return handles, nil
}
