package aws

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/batch"
	"github.com/aws/aws-sdk-go-v2/service/batch/types"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"

	"fisub/internal/plain"
	"fisub/remote"
)

//go:embed host.sh
var hostScript string

const jobPrefix = "fisub-" // of the names of Batch jobs

// check asks whether the queue would take a job. Its error is the SDK's, as those of all here.
func (p *Provider) check(ctx context.Context, a *account) (remote.Host, error) {
	c := p.config
	h := remote.Host{Name: c.Queue, State: "ready"}
	queues, err := a.batch.DescribeJobQueues(ctx, &batch.DescribeJobQueuesInput{JobQueues: []string{c.Queue}})
	if err != nil {
		return h, err
	}
	if len(queues.JobQueues) == 0 {
		return h, p.absent("no job queue %s in %s", c.Queue, a.region)
	}
	if d := queues.JobQueues[0]; d.State != types.JQStateEnabled || d.Status != types.JQStatusValid {
		h.State = strings.ToLower(string(d.State) + ", " + string(d.Status))
		return h, p.absent("job queue %s is %s and %s: %s", c.Queue, d.State, d.Status, aws.ToString(d.StatusReason))
	}
	definition, err := p.definition(ctx, a)
	if err != nil {
		return h, err
	}
	h.Detail = fmt.Sprintf("job definition %s, revision %d",
		aws.ToString(definition.JobDefinitionName), aws.ToInt32(definition.Revision))
	for _, order := range queues.JobQueues[0].ComputeEnvironmentOrder {
		envs, err := a.batch.DescribeComputeEnvironments(ctx, &batch.DescribeComputeEnvironmentsInput{
			ComputeEnvironments: []string{aws.ToString(order.ComputeEnvironment)}})
		if err != nil {
			return h, err
		}
		for _, e := range envs.ComputeEnvironments {
			if r := e.ComputeResources; r != nil {
				h.Detail += fmt.Sprintf(", %s up to %d vCPUs", strings.Join(r.InstanceTypes, " "), aws.ToInt32(r.MaxvCpus))
			}
		}
	}
	return h, nil
}

func (p *Provider) absent(format string, args ...any) error {
	const hint = "create it with scripts/aws/template.yaml, or set queue, job_definition and region to yours"
	return p.deny("no-such", hint, format, args...)
}

// definition finds the newest active revision of the job definition, or the one that the config names.
func (p *Provider) definition(ctx context.Context, a *account) (*types.JobDefinition, error) {
	name := p.config.JobDefinition
	in := &batch.DescribeJobDefinitionsInput{Status: aws.String("ACTIVE")}
	if strings.HasPrefix(name, "arn:") || strings.Contains(name, ":") {
		in.JobDefinitions = []string{name}
	} else {
		in.JobDefinitionName = &name
	}
	out, err := a.batch.DescribeJobDefinitions(ctx, in)
	if err != nil {
		return nil, err
	}
	var newest *types.JobDefinition
	for i, d := range out.JobDefinitions {
		if newest == nil || aws.ToInt32(d.Revision) > aws.ToInt32(newest.Revision) {
			newest = &out.JobDefinitions[i]
		}
	}
	if newest == nil {
		return nil, p.absent("no active job definition %s in %s", name, a.region)
	}
	return newest, nil
}

// start starts the job and gives AWS's id of it. boot is the link to the list of links.
func (p *Provider) start(ctx context.Context, a *account, job *remote.Job, program, boot string) (string, error) {
	// Batch takes the same job twice, so a request that may have been taken is not sent again.
	once := func(o *batch.Options) {
		o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) {
			o.Retryables = []retry.IsErrorRetryable{retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes}}
		})
	}
	out, err := a.batch.SubmitJob(ctx, p.submitInput(job, program, boot), once)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.JobId), nil
}

// submitInput is what Batch is asked for. Batch ends the job, whatever happens on the host, when its limit and the time
// to begin and to end are over; it does not start it again.
func (p *Provider) submitInput(job *remote.Job, program, boot string) *batch.SubmitJobInput {
	in := &batch.SubmitJobInput{
		JobName:       aws.String(jobPrefix + job.ID),
		JobQueue:      &p.config.Queue,
		JobDefinition: &p.config.JobDefinition,
		ContainerOverrides: &types.ContainerOverrides{
			Command: []string{"/bin/sh", "-c", hostScript},
			Environment: []types.KeyValuePair{
				{Name: aws.String("FISUB_BOOT"), Value: &boot},
				{Name: aws.String("FISUB_JOB"), Value: &job.ID},
				{Name: aws.String("FISUB_PROGRAM"), Value: &program},
			},
		},
		RetryStrategy: &types.RetryStrategy{Attempts: aws.Int32(1)},
		Timeout:       &types.JobTimeout{AttemptDurationSeconds: aws.Int32(int32(math.Ceil((job.Limit + margin).Seconds())))},
		Tags:          tags(job),
		PropagateTags: aws.Bool(true),
	}
	if job.GPU != "" {
		gpu := types.ResourceRequirement{Type: types.ResourceTypeGpu, Value: aws.String("1")}
		in.ContainerOverrides.ResourceRequirements = []types.ResourceRequirement{gpu}
	}
	return in
}

func (a *account) describe(ctx context.Context, d *data) (*types.JobDetail, error) {
	if d.ID == "" {
		all, err := a.named(ctx, d.Queue, jobPrefix+d.job)
		if err != nil || all[d.job] == "" {
			return nil, err
		}
		d.ID = all[d.job]
	}
	out, err := a.batch.DescribeJobs(ctx, &batch.DescribeJobsInput{Jobs: []string{d.ID}})
	if err != nil || len(out.Jobs) == 0 {
		return nil, err
	}
	return &out.Jobs[0], nil
}

// named gives the ids of the jobs that have not ended, by the jobs' own ids. name may end with "*".
func (a *account) named(ctx context.Context, queue, name string) (map[string]string, error) {
	found := map[string]string{}
	pages := batch.NewListJobsPaginator(a.batch, &batch.ListJobsInput{JobQueue: &queue,
		Filters: []types.KeyValuesPair{{Name: aws.String("JOB_NAME"), Values: []string{name}}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, j := range page.JobSummaryList {
			job, ok := strings.CutPrefix(aws.ToString(j.JobName), jobPrefix)
			if ok && remote.ValidID(job) && j.Status != types.JobStatusSucceeded && j.Status != types.JobStatusFailed {
				found[job] = aws.ToString(j.JobId)
			}
		}
	}
	return found, nil
}

// newJob is for how long AWS may not yet know what it has accepted.
const newJob = 2 * time.Minute

// A status is what Batch says of a job. exit is set where it has ended.
type status struct {
	phase remote.Phase
	text  string
	exit  *remote.Exit
}

func (a *account) look(ctx context.Context, d *data) (status, error) {
	j, err := a.describe(ctx, d)
	if err != nil {
		return status{}, err
	}
	if j == nil {
		if time.Since(d.At) < newJob && d.ID != "" {
			return status{phase: remote.Queued}, nil
		}
		return status{exit: &remote.Exit{End: remote.Lost, Text: "Batch does not know the job any more"}}, nil
	}
	reason := plain.Brief(aws.ToString(j.StatusReason), 300)
	switch j.Status {
	case types.JobStatusSubmitted, types.JobStatusPending, types.JobStatusRunnable:
		text := strings.ToLower(string(j.Status))
		if j.CreatedAt != nil {
			text += " since " + time.UnixMilli(*j.CreatedAt).UTC().Format("15:04:05Z")
		}
		if reason != "" {
			text += ": " + reason
		}
		return status{phase: remote.Queued, text: text}, nil
	case types.JobStatusStarting:
		return status{phase: remote.Starting, text: reason}, nil
	case types.JobStatusRunning:
		return status{phase: remote.Running, text: reason}, nil
	}
	return status{exit: batchExit(j, reason)}, nil
}

// batchExit is the end of a job that left no exit itself.
func batchExit(j *types.JobDetail, reason string) *remote.Exit {
	text := "Batch: " + strings.ToLower(string(j.Status))
	if reason != "" {
		text += ": " + reason
	}
	exit := &remote.Exit{End: remote.Lost, Text: text}
	if c := j.Container; c != nil {
		if c.ExitCode != nil {
			exit.Text += fmt.Sprintf("; the container ended with %d", *c.ExitCode)
		}
		if c.Reason != nil {
			exit.Text += "; " + plain.Brief(*c.Reason, 300)
		}
	}
	switch {
	case aws.ToBool(j.IsTerminated), aws.ToBool(j.IsCancelled):
		exit.End = remote.Cancelled
	case strings.Contains(reason, "attempt duration exceeded"):
		exit.End = remote.Limited
	case strings.Contains(reason, "Host EC2"):
		exit.Hint = "the instance is gone, as where a spot instance is taken back: the job can be submitted again"
	case strings.Contains(exit.Text, "CannotPullContainer"):
		exit.Hint = "check the image of the job definition, and that its hosts reach the registry"
	}
	return exit
}

// stop ends the job for good; nothing happens where it has ended or is not known.
func (a *account) stop(ctx context.Context, d *data) error {
	j, err := a.describe(ctx, d)
	if err != nil || j == nil {
		return err
	}
	_, err = a.batch.TerminateJob(ctx, &batch.TerminateJobInput{JobId: j.JobId, Reason: aws.String("released by fisub")})
	return err
}

// words gives the last lines of the container, where its own log tells why it did not come to the job.
func (p *Provider) words(ctx context.Context, a *account, d *data) []string {
	j, err := a.describe(ctx, d)
	if err != nil || j == nil || j.Container == nil || j.Container.LogStreamName == nil {
		return nil
	}
	out, err := a.logs.GetLogEvents(ctx, &cloudwatchlogs.GetLogEventsInput{LogGroupName: &p.config.LogGroup,
		LogStreamName: j.Container.LogStreamName, Limit: aws.Int32(100)})
	if err != nil {
		return nil
	}
	var lines []string
	for _, e := range out.Events {
		lines = append(lines, plain.Brief(aws.ToString(e.Message), 1000))
	}
	return lines
}

// tags are those of what AWS holds for a job.
func tags(job *remote.Job) map[string]string {
	t := map[string]string{"fisub:job": job.ID}
	for key, value := range job.Labels {
		if len(t) < 10 && len(key) < 100 {
			t["fisub:"+tagText(key)] = tagText(value)
		}
	}
	return t
}

// noTag is what some service does not take in a tag.
var noTag = regexp.MustCompile(`[^A-Za-z0-9+=._:/@ -]`)

func tagText(s string) string {
	s = noTag.ReplaceAllString(s, "-")
	return s[:min(len(s), 200)]
}
