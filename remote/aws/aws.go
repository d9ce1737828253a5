// Package aws runs jobs in an AWS account, as jobs of a Batch queue. They take the bundle from an S3 bucket and leave
// their results there, through links that expire, so that a host has no credentials and nothing connects to it. It
// creates no bucket, queue or role: scripts/aws/template.yaml does.
package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
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
	"github.com/aws/smithy-go"

	"fisub/remote"
	"fisub/remote/aws/mailbox"
)

// Kind is the provider's name in config.toml and in handles.
const Kind = "aws"

// margin is what a job may take beside its limit: fetching the bundle, ending, leaving its results.
const margin = 15 * time.Minute

// A Provider is the remote.Provider of one table of the config.
type Provider struct {
	name   string
	config Config
	poll   time.Duration // between looks into the bucket
	look   time.Duration // between questions how the job is
	dial   dialer        // nil for the usual one
	turn   chan struct{} // taken by the Submit that sends its files

	mu      sync.Mutex
	clients map[string]*account // by region
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New makes the provider of the table [remote.name] and asks nobody.
func New(name string, c Config) *Provider {
	return &Provider{name: name, config: c, poll: time.Second, look: 5 * time.Second, turn: make(chan struct{}, 1),
		clients: map[string]*account{}}
}

// Close ends connections.
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

// An account is what speaks with one region.
type account struct {
	region string
	http   aws.HTTPClient
	creds  aws.CredentialsProvider
	s3     *s3.Client
	batch  *batch.Client
	logs   *cloudwatchlogs.Client
}

// account gives the clients for a region, "" being the config's, and has made sure that there are credentials.
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
	// The SDK has added what AWS_CA_BUNDLE says. All services share one pool of connections, which Close empties.
	if c, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		cfg.HTTPClient = c.Freeze()
	}
	quiet := func(o *s3.Options) { o.DisableLogOutputChecksumValidationSkipped = true }
	a := &account{region: cfg.Region, http: cfg.HTTPClient, creds: cfg.Credentials, s3: s3.NewFromConfig(cfg, quiet),
		batch: batch.NewFromConfig(cfg), logs: cloudwatchlogs.NewFromConfig(cfg)}
	p.clients[region], p.clients[cfg.Region] = a, a
	return a, nil
}

// setup gives the error of finding the configuration or the credentials of the AWS tools.
func (p *Provider) setup(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
	if errors.As(err, new(*remote.Denied)) {
		return err
	}
	const hint = "set up credentials as for the AWS tools (`aws configure`, `aws sso login`, AWS_PROFILE, " +
		"AWS_ACCESS_KEY_ID)"
	return p.deny("credentials", hint, "%v", err)
}

// data is Handle.Data. A copy lies in the job's folder, so that any client finds the job.
type data struct {
	Region string        `json:"region"`
	Bucket string        `json:"bucket"`
	Prefix string        `json:"prefix"`
	Queue  string        `json:"queue"`
	ID     string        `json:"id,omitempty"` // of the Batch job; "" where it is to be found by the job's name
	Limit  time.Duration `json:"limit"`
	At     time.Time     `json:"at"`             // of the Submit
	Until  time.Time     `json:"until,omitzero"` // when the job's links expire
	job    string
}

func (d *data) folder() string { return d.Prefix + "jobs/" + d.job + "/" }

// open reads a handle.
func (p *Provider) open(ctx context.Context, h remote.Handle) (*account, *data, error) {
	d := &data{job: h.Job}
	if err := json.Unmarshal(h.Data, d); err != nil || h.Provider != Kind || !remote.ValidID(h.Job) || d.Queue == "" ||
		!bucketName.MatchString(d.Bucket) || !validPrefix(d.Prefix) {
		return nil, nil, fmt.Errorf("%s: the handle of %.80q is not one of AWS Batch", p.name, h.Job)
	}
	a, err := p.account(ctx, d.Region)
	return a, d, err
}

func (d *data) handle(place remote.Place) remote.Handle {
	return remote.NewHandle(Kind, d.job, place, d)
}

// Places gives as many places as the config allows jobs in the queue at a time.
func (p *Provider) Places(n int) []remote.Place { return remote.Slots("slot", min(n, p.config.Slots)) }

// Check asks for the bucket, and whether the queue would take a job.
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

// Submit sends the bundle to the bucket and starts the job.
func (p *Provider) Submit(
	ctx context.Context, job *remote.Job, progress func(sent, total int64),
) (h remote.Handle, err error) {
	program, err := job.Program()
	if err != nil {
		return h, fmt.Errorf("%s: %w", p.name, err)
	}
	if job.Limit > week/2 {
		return h, fmt.Errorf("%s: a job's limit of %v is above %v", p.name, job.Limit, week/2)
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
	defer func() {
		if err != nil {
			err = errors.Join(err, p.undo(ctx, a, b, d))
		}
	}()
	boot, err := p.post(ctx, b, d, job, program.SHA256, life)
	if err != nil {
		return h, p.denied(ctx, "bucket "+b.name, err)
	}
	if d.ID, err = p.start(ctx, a, job, program.SHA256, boot); err != nil {
		return h, p.denied(ctx, "", err)
	}
	return d.handle(job.Place), nil
}

// undo ends what a Submit that failed may have started.
func (p *Provider) undo(ctx context.Context, a *account, b *bucket, d *data) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	// Without its folder a host that starts all the same finds no job, and ends.
	err := errors.Join(p.denied(ctx, "", b.clear(ctx, d.folder())), p.denied(ctx, "", a.stop(ctx, d)))
	if err != nil {
		return fmt.Errorf("undoing the submission of %s: %w", d.job, err)
	}
	return nil
}

// life is for how long the links of a job must work. Credentials that end earlier than the wait for a host shorten it,
// those that end before the job could be over are refused.
func (p *Provider) life(ctx context.Context, a *account, job *remote.Job) (time.Duration, error) {
	need, most := job.Limit+margin, job.Limit+margin+p.config.QueueLimit
	creds, err := a.creds.Retrieve(ctx)
	if err != nil {
		return 0, p.setup(ctx, err)
	}
	if !creds.CanExpire {
		return min(most, week-time.Minute), nil
	}
	left := time.Until(creds.Expires)
	if left < need {
		return 0, p.deny("credentials", "renew them, with a longer session, or give the job a lower limit",
			"the credentials end at %s, before a job of %v could be over", creds.Expires.UTC().Format(time.RFC3339), job.Limit)
	}
	return min(most, left), nil
}

// maxGarbled answers of Batch in a row may be no answers before a Wait for a job that has said nothing ends.
const maxGarbled = 5

// Wait copies the event stream out of the bucket while the host leaves it there.
func (p *Provider) Wait(ctx context.Context, h remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	a, d, err := p.open(ctx, h)
	if err != nil {
		return remote.Exit{}, err
	}
	r := &reader{Feed: remote.Feed{To: w, At: from}, bucket: &bucket{a.s3, d.Bucket}, folder: d.folder() + "out/",
		seal: remote.Seal{Key: h.Key, Job: h.Job}}
	var now status
	var asked time.Time
	away, garbled := false, 0
	last := d.Until.Add(maxSkew)
	// trouble gives the error that ends the Wait; of one that may pass the watcher hears.
	trouble := func(host string, err error) error {
		if err = p.denied(ctx, host, err); ctx.Err() != nil || !passing(err) {
			return err
		}
		r.Tell(remote.Away, err.Error())
		return nil
	}
	for {
		if time.Since(asked) >= p.look || now.exit != nil {
			fresh, err := a.look(ctx, d)
			if errors.As(err, new(*smithy.DeserializationError)) {
				garbled++
			} else {
				garbled = 0
			}
			if away, asked = err != nil, time.Now(); !away {
				now = fresh
			} else if garbled >= maxGarbled && !r.started {
				return remote.Exit{}, p.denied(ctx, "Batch's answers cannot be read", err)
			} else if err := trouble("", err); err != nil {
				return remote.Exit{}, err
			}
		}
		// What ended before this look has left everything that it ever will.
		exit, err := r.read(ctx)
		switch {
		case r.Err != nil:
			return remote.Exit{}, r.Err
		case err != nil:
			if err := trouble("bucket "+d.Bucket, err); err != nil {
				return remote.Exit{}, err
			}
		case exit != nil:
			if exit.End != remote.Refused {
				r.Tell(remote.Running, now.text)
			}
			return *exit, nil
		case now.exit != nil:
			if now.exit.End == remote.Lost {
				if lines := p.words(ctx, a, d); len(lines) > 0 {
					now.exit.Text += "; it said last: " + lines[len(lines)-1]
				}
			}
			return *now.exit, nil
		case time.Now().After(last):
			return remote.Exit{End: remote.Lost, Text: "its links have expired at " + last.UTC().Format(time.RFC3339) +
				": it can leave no results any more; Batch says: " + cmp.Or(string(now.phase), "nothing"),
				Hint: "raise remote." + p.name + ".queue_limit where it waited for a machine"}, nil
		case away:
		case now.phase == remote.Running && !r.started:
			r.Tell(remote.Starting, now.text)
		default:
			r.Tell(now.phase, now.text)
		}
		if remote.Sleep(ctx, p.poll) != nil {
			return remote.Exit{}, fmt.Errorf("%s: %w", p.name, ctx.Err())
		}
	}
}

// Collect fetches the log. Where the job came to none, it is what AWS keeps of the host's words.
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
	return os.WriteFile(filepath.Join(dst, mailbox.Log), log, 0o644)
}

// Release ends the job and deletes its folder.
func (p *Provider) Release(ctx context.Context, h remote.Handle) error {
	a, d, err := p.open(ctx, h)
	if err != nil {
		return err
	}
	b := &bucket{a.s3, d.Bucket}
	// The order to stop is the second way, for where AWS does not let this client end the job.
	told := p.denied(ctx, "bucket "+b.name, b.put(ctx, d.folder()+"stop", []byte("stop\n")))
	if err := a.stop(ctx, d); err != nil {
		return errors.Join(p.denied(ctx, "", err), told)
	}
	// AWS has taken the order. Where the job had begun, the agent ends it and says so.
	r := &reader{Feed: remote.Feed{At: math.MaxInt64}, bucket: b, folder: d.folder() + "out/"}
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		if exit, err := r.read(ctx); err != nil || exit != nil {
			break
		}
		if s, err := a.look(ctx, d); err != nil || s.exit != nil || remote.Sleep(ctx, p.poll) != nil {
			break
		}
	}
	return p.denied(ctx, "bucket "+b.name, b.clear(ctx, d.folder()))
}

// List gives the jobs that have a folder under the prefix, and those that run without one.
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
