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
	"fisub/remote/follow"
)

//go:embed host.sh
var hostScript string

// Names of Batch jobs begin with jobPrefix, as do job ids of runs. Other ids get the prefix anyJob, which no id
// contains.
const (
	jobPrefix = "fisub-"
	anyJob    = "fisub_"
)

func jobName(job string) string {
	if strings.HasPrefix(job, jobPrefix) {
		return job
	}
	return anyJob + job
}

// jobOf returns the job id for the name of a Batch job, or "" if it is not one of fisub's.
func jobOf(name string) string {
	if job, ok := strings.CutPrefix(name, anyJob); ok && remote.ValidID(job) {
		return job
	}
	if strings.HasPrefix(name, jobPrefix) && remote.ValidID(name) {
		return name
	}
	return ""
}

// check reports whether the queue would accept a job. All errors in this file are the SDK's.
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
				h.Detail += fmt.Sprintf(", %s up to %d vCPUs in %s", strings.Join(r.InstanceTypes, " "),
					aws.ToInt32(r.MaxvCpus), plain.Count(len(r.Subnets), "subnet"))
			}
		}
	}
	return h, nil
}

func (p *Provider) absent(format string, args ...any) error {
	const hint = "create it with scripts/aws/template.yaml, or set queue, job_definition and region"
	return p.deny("no-such", hint, format, args...)
}

// definition returns the newest active revision of the job definition, or the revision that the config names.
func (p *Provider) definition(ctx context.Context, a *account) (*types.JobDefinition, error) {
	name := p.config.JobDefinition
	in := &batch.DescribeJobDefinitionsInput{Status: aws.String("ACTIVE")}
	if strings.Contains(name, ":") {
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

// start submits the job and returns AWS's id for it. boot is the link to the list of links.
func (p *Provider) start(ctx context.Context, a *account, job *remote.Job, program, boot string) (string, error) {
	// Batch accepts the same job twice, so do not repeat a request that it may have accepted.
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

// submitInput returns the request to Batch. Whatever happens on the host, Batch ends the job after its limit plus
// extra, and does not restart it.
func (p *Provider) submitInput(job *remote.Job, program, boot string) *batch.SubmitJobInput {
	in := &batch.SubmitJobInput{
		JobName:       aws.String(jobName(job.ID)),
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
		Timeout:       &types.JobTimeout{AttemptDurationSeconds: aws.Int32(int32(math.Ceil((job.Limit + extra).Seconds())))},
		Tags:          p.tags(job),
		PropagateTags: aws.Bool(true),
	}
	if job.GPU != "" {
		gpu := types.ResourceRequirement{Type: types.ResourceTypeGpu, Value: aws.String("1")}
		in.ContainerOverrides.ResourceRequirements = []types.ResourceRequirement{gpu}
	}
	return in
}

// find returns Batch's list entry for a job, or nil if Batch does not know the job. It does not call DescribeJobs:
// permission for that includes reading the boot links of all jobs in the account.
func (a *account) find(ctx context.Context, d *data) (found *types.JobSummary, err error) {
	err = a.list(ctx, d.Queue, jobName(d.job), func(job string, j types.JobSummary) {
		if d.ID == aws.ToString(j.JobId) || d.ID == "" && (found == nil || !over(j)) {
			found = &j
		}
	})
	return found, err
}

func over(j types.JobSummary) bool {
	return j.Status == types.JobStatusSucceeded || j.Status == types.JobStatusFailed
}

// list calls tell for each job of a queue, with fisub's job id. name may end with "*".
func (a *account) list(ctx context.Context, queue, name string, tell func(job string, j types.JobSummary)) error {
	pages := batch.NewListJobsPaginator(a.batch, &batch.ListJobsInput{JobQueue: &queue,
		Filters: []types.KeyValuesPair{{Name: aws.String("JOB_NAME"), Values: []string{name}}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, j := range page.JobSummaryList {
			if job := jobOf(aws.ToString(j.JobName)); job != "" {
				tell(job, j)
			}
		}
	}
	return nil
}

// newJob is how long AWS may not yet list a job that it has accepted.
const newJob = 2 * time.Minute

// jobStatus returns Batch's view of a job. A job that runs may not have started its agent.
func (a *account) jobStatus(ctx context.Context, d *data) (is follow.Status, err error) {
	j, err := a.find(ctx, d)
	switch {
	case err != nil:
		return is, err
	case j == nil && time.Since(d.At) < newJob && d.ID != "":
		is.Stage.Phase = remote.Queued
		return is, nil
	case j == nil:
		return follow.Status{Over: true, End: remote.Exit{End: remote.Lost, Text: "Batch no longer knows the job"}}, nil
	}
	reason := plain.Brief(aws.ToString(j.StatusReason), 300)
	is.Stage.Text = reason
	switch j.Status {
	case types.JobStatusSubmitted, types.JobStatusPending, types.JobStatusRunnable:
		is.Stage.Phase, is.Stage.Text = remote.Queued, strings.ToLower(string(j.Status))
		if j.CreatedAt != nil {
			is.Stage.Text += " since " + time.UnixMilli(*j.CreatedAt).UTC().Format("15:04:05Z")
		}
		if reason != "" {
			is.Stage.Text += ": " + reason
		}
	case types.JobStatusStarting:
		is.Stage.Phase = remote.Starting
	case types.JobStatusRunning:
		is.Stage.Phase = remote.Running
	default:
		return follow.Status{Over: true, End: batchExit(j, reason)}, nil
	}
	return is, nil
}

// released is the termination reason that Release gives.
const released = "released by fisub"

// batchReason matches the reasons that Batch itself gives for the end of a job. Any other text comes from whoever ended
// it.
var batchReason = regexp.MustCompile(`^(Essential container|Host EC2|Job attempt|Task |CannotPull|CannotStart|` +
	`Resource|OutOfMemory|Docker|ECS|Internal|Dependent Job|(Canceled|Terminated) by JobStateTimeLimit|$)`)

// batchExit returns the exit of a job that wrote none.
func batchExit(j *types.JobSummary, reason string) remote.Exit {
	text := "Batch: " + strings.ToLower(string(j.Status))
	if reason != "" {
		text += ": " + reason
	}
	exit := remote.Exit{End: remote.Lost, Text: text}
	if c := j.Container; c != nil {
		if c.ExitCode != nil {
			exit.Text += fmt.Sprintf("; the container ended with %d", *c.ExitCode)
		}
		if c.Reason != nil {
			exit.Text += "; " + plain.Brief(*c.Reason, 300)
		}
	}
	switch {
	case !batchReason.MatchString(reason):
		exit.End = remote.Cancelled
	case strings.Contains(reason, "attempt duration exceeded"):
		exit.End = remote.Limited
	case strings.Contains(reason, "JobStateTimeLimit"):
		exit.End, exit.Hint = remote.Refused, "AWS had no machine in time: try other zones, a reservation, or later"
	case strings.Contains(reason, "Host EC2"):
		exit.Hint = "the instance is gone, for example a reclaimed spot instance: submit the job again"
	case strings.Contains(exit.Text, "CannotPullContainer"):
		exit.Hint = "check the image of the job definition, and the hosts' access to the registry"
	}
	return exit
}

// stop terminates the job. A job that has ended or is unknown is not an error.
func (a *account) stop(ctx context.Context, d *data) error {
	id := d.ID
	if id == "" {
		j, err := a.find(ctx, d)
		if err != nil || j == nil {
			return err
		}
		id = aws.ToString(j.JobId)
	}
	_, err := a.batch.TerminateJob(ctx, &batch.TerminateJobInput{JobId: &id, Reason: aws.String(released)})
	if c := code(err); c == "ClientException" && absent.MatchString(err.Error()) {
		return nil
	}
	return err
}

// words returns the last lines of the container's own log, which show why the job did not start. Its first line names
// the job.
func (p *Provider) words(ctx context.Context, a *account, d *data) (lines []string) {
	pages := cloudwatchlogs.NewFilterLogEventsPaginator(a.logs, &cloudwatchlogs.FilterLogEventsInput{
		LogGroupName: &p.config.LogGroup, FilterPattern: aws.String(fmt.Sprintf("%q", "fisub: job "+d.job)),
		StartTime: aws.Int64(d.At.UnixMilli())})
	var stream *string
	for n := 0; pages.HasMorePages() && n < 20 && stream == nil; n++ {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil
		}
		for _, e := range page.Events {
			stream = e.LogStreamName
		}
	}
	if stream == nil {
		return nil
	}
	out, err := a.logs.GetLogEvents(ctx, &cloudwatchlogs.GetLogEventsInput{LogGroupName: &p.config.LogGroup,
		LogStreamName: stream, Limit: aws.Int32(100)})
	if err != nil {
		return nil
	}
	for _, e := range out.Events {
		lines = append(lines, plain.Brief(aws.ToString(e.Message), 1000))
	}
	return lines
}

// tags returns the tags of a job's AWS resources. The template's policy lets users start and end jobs with their own
// prefix.
func (p *Provider) tags(job *remote.Job) map[string]string {
	t := map[string]string{"fisub:job": job.ID, "fisub:prefix": p.config.Prefix}
	for key, value := range job.Labels {
		if len(t) < 10 && len(key) < 100 {
			t["fisub:"+tagText(key)] = tagText(value)
		}
	}
	return t
}

// noTag matches characters that some AWS service does not accept in a tag.
var noTag = regexp.MustCompile(`[^A-Za-z0-9+=._:/@ -]`)

func tagText(s string) string {
	s = noTag.ReplaceAllString(s, "-")
	return s[:min(len(s), 200)]
}
