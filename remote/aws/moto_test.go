package aws

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/batch"

	"fisub/remote"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
)

// newMoto starts moto's server and creates the template's stack in it. It returns the server's address and the stack's
// outputs.
func newMoto(t *testing.T) (endpoint string, outputs map[string]string) {
	t.Helper()
	address := servertest.Address(t)
	host, port, _ := strings.Cut(address, ":")
	servertest.Run(t, exec.Command(tool(t, "moto/bin/moto_server"), "-H", host, "-p", port))
	endpoint = "http://" + address
	defer http.DefaultClient.CloseIdleConnections()
	servertest.Until(t, "moto", func() bool {
		// Without docker, Batch jobs end at once.
		resp, err := http.Post(endpoint+"/moto-api/config", "application/json",
			strings.NewReader(`{"batch": {"use_docker": false}}`))
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	python := exec.Command(tool(t, "moto/bin/python"), "testdata/stack.py", "../../scripts/aws/template.yaml", endpoint)
	var stderr bytes.Buffer
	python.Stderr = &stderr
	out, err := python.Output()
	if err != nil {
		t.Fatalf("the stack: %v: %s", err, stderr.String())
	}
	if err := json.Unmarshal(out, &outputs); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL", endpoint)
	return endpoint, outputs
}

// Another implementation of AWS accepts the requests to Batch, in the stack that users create.
func TestMoto(t *testing.T) {
	newCloud(t) // for the bucket, since moto verifies no signature
	_, out := newMoto(t)

	p := newProvider(t, map[string]any{"queue": out["Queue"], "job_definition": out["JobDefinition"]})
	hosts, err := p.Check(t.Context())
	if err != nil || hosts[0].Err != nil || !strings.HasSuffix(hosts[0].Detail,
		", revision 1, p6-b200.48xlarge up to 192 vCPUs in 6 subnets") {
		t.Fatalf("Check: got %+v, %v", hosts, err)
	}
	job := script(t, p, "true")
	job.GPU = "b200"
	h, err := p.Submit(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, d, err := p.open(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := a.batch.ListTagsForResource(t.Context(), &batch.ListTagsForResourceInput{
		ResourceArn: aws.String("arn:aws:batch:us-east-1:123456789012:job/" + d.ID)})
	if err == nil && (tags.Tags["fisub:run"] != "test" || tags.Tags["fisub:prefix"] != "fisub/") {
		t.Errorf("tags: got %v", tags.Tags)
	}
	// moto's jobs end at once and write nothing.
	if _, exit := remotetest.Wait(t, p, h); exit.End != remote.Lost || !strings.Contains(exit.Text, "Batch: succeeded") {
		t.Errorf("got %+v", exit)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 || all[0].Job != job.ID {
		t.Errorf("List: got %+v, %v", all, err)
	}
	remotetest.Release(t, p, h)
	p = newProvider(t, map[string]any{"queue": "none", "job_definition": out["JobDefinition"]})
	_, err = p.Submit(t.Context(), script(t, p, "true"), nil)
	remotetest.CheckDenied(t, err, "no-such", "", "")
}

// The template's policy grants users of fisub the provider's permissions under their own prefix. It denies access to
// other users' jobs and files, to other queues and definitions, and to the links of jobs.
func TestPolicy(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	simulator := filepath.Dir(tool(t, "iam/node_modules"))
	_, out := newMoto(t)
	const batch = "arn:aws:batch:us-east-1:123456789012:"
	bucket := "arn:aws:s3:::" + out["Bucket"]
	definition := out["JobDefinition"][:strings.LastIndex(out["JobDefinition"], ":")]
	logs := "arn:aws:logs:us-east-1:123456789012:log-group:" + out["LogGroup"]
	type context map[string]string
	me := func(more context) context {
		all := context{"aws:PrincipalTag/fisub": "alice"}
		maps.Copy(all, more)
		return all
	}
	const mine, theirs = "fisub/alice/", "fisub/bob/"
	cases := []struct {
		allowed          bool
		action, resource string
		context          context
	}{
		{true, "s3:ListBucket", bucket, me(context{"s3:prefix": mine + "jobs/"})},
		{true, "s3:ListBucket", bucket, me(context{"s3:prefix": mine})},
		{false, "s3:ListBucket", bucket, me(context{"s3:prefix": theirs})},
		{false, "s3:ListBucket", bucket, me(context{"s3:prefix": ""})},
		{false, "s3:ListBucket", bucket, me(nil)},
		{true, "s3:GetObject", bucket + "/" + mine + "store/0a", me(nil)},
		{true, "s3:PutObject", bucket + "/" + mine + "jobs/j/job.json", me(nil)},
		{true, "s3:DeleteObject", bucket + "/" + mine + "jobs/j/boot", me(nil)},
		{false, "s3:GetObject", bucket + "/" + theirs + "jobs/j/boot", me(nil)},
		{false, "s3:PutObject", bucket + "/" + theirs + "jobs/j/job.json", me(nil)},
		{false, "s3:PutObject", bucket + "/" + theirs + "store/0a", me(nil)},
		{false, "s3:PutObject", bucket + "/fisub//jobs/j/job.json", context{}}, // a user without the tag
		{false, "s3:PutObject", "arn:aws:s3:::another/" + mine + "x", me(nil)},
		{true, "batch:SubmitJob", out["Queue"], me(context{"aws:RequestTag/fisub:prefix": mine})},
		{true, "batch:SubmitJob", definition + ":7", me(context{"aws:RequestTag/fisub:prefix": mine})},
		{true, "batch:SubmitJob", batch + "job/1", me(context{"aws:RequestTag/fisub:prefix": mine})},
		{false, "batch:SubmitJob", out["Queue"], me(context{"aws:RequestTag/fisub:prefix": theirs})},
		{false, "batch:SubmitJob", out["Queue"], me(nil)},
		{false, "batch:SubmitJob", batch + "job-queue/other", me(context{"aws:RequestTag/fisub:prefix": mine})},
		{false, "batch:SubmitJob", batch + "job-definition/admin:1", me(context{"aws:RequestTag/fisub:prefix": mine})},
		{true, "batch:TerminateJob", batch + "job/1", me(context{"aws:ResourceTag/fisub:prefix": mine})},
		{false, "batch:TerminateJob", batch + "job/1", me(context{"aws:ResourceTag/fisub:prefix": theirs})},
		{false, "batch:TerminateJob", batch + "job/1", me(nil)},
		{true, "batch:TagResource", batch + "job/1", me(context{"aws:RequestTag/fisub:prefix": mine})},
		{false, "batch:TagResource", batch + "job/1", me(context{"aws:RequestTag/fisub:prefix": mine,
			"aws:ResourceTag/fisub:prefix": theirs})},
		{false, "batch:TagResource", out["Queue"], me(context{"aws:RequestTag/fisub:prefix": mine})},
		{true, "batch:ListJobs", "*", me(nil)},
		{true, "batch:DescribeJobQueues", "*", me(nil)},
		{true, "batch:DescribeJobDefinitions", "*", me(nil)},
		{true, "batch:DescribeComputeEnvironments", "*", me(nil)},
		{false, "batch:DescribeJobs", "*", me(nil)},
		{false, "batch:RegisterJobDefinition", definition + ":8", me(nil)},
		{true, "logs:GetLogEvents", logs + ":log-stream:fisub/default/1", me(nil)},
		{true, "logs:FilterLogEvents", logs, me(nil)},
		{false, "logs:GetLogEvents", "arn:aws:logs:us-east-1:123456789012:log-group:/aws/batch/job:log-stream:x", me(nil)},
		{false, "ec2:RunInstances", "arn:aws:ec2:us-east-1:123456789012:instance/*", me(nil)},
		{false, "iam:PassRole", "arn:aws:iam::123456789012:role/x", me(nil)},
	}
	asked := []map[string]any{}
	for _, c := range cases {
		asked = append(asked, map[string]any{"principal": "alice", "action": c.action, "resource": c.resource,
			"context": c.context})
	}
	in, err := json.Marshal(map[string]any{"policy": json.RawMessage(out["policy"]), "cases": asked})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "testdata/policy.mjs", simulator)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	words, err := cmd.Output()
	answers := strings.Split(strings.TrimSpace(string(words)), "\n")
	if err != nil || len(answers) != len(cases) {
		t.Fatalf("%v: %s%s", err, words, stderr.String())
	}
	for i, c := range cases {
		want := "ImplicitlyDenied"
		if c.allowed {
			want = "Allowed"
		}
		if answers[i] != want {
			t.Errorf("%s on %s with %v: got %s, want %s", c.action, c.resource, c.context, answers[i], want)
		}
	}
}

// The template's sweeper ends only jobs of its own stack that are too old.
func TestSweeper(t *testing.T) {
	endpoint, _ := newMoto(t)
	cmd := exec.Command(tool(t, "moto/bin/python"), "testdata/sweep.py", "../../scripts/aws/template.yaml", endpoint, "6",
		"0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != `["", "ab"]` {
		t.Errorf("got %s, %v, want nothing and then a and b\n%s", got, err, stderr.String())
	}
}

// AWS's own checker accepts the template.
func TestTemplate(t *testing.T) {
	out, err := exec.Command(tool(t, "moto/bin/cfn-lint"), "--non-zero-exit-code", "informational",
		"../../scripts/aws/template.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
