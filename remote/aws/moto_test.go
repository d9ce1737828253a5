package aws

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/batch"

	"fisub/remote"
)

// newMoto starts moto's server and makes the stack of the template in it. It gives the server's address and the stack's outputs.
func newMoto(t *testing.T) (endpoint string, outputs map[string]string) {
	t.Helper()
	server, address := tool(t, "moto/bin/moto_server"), free(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "moto.log"))
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(address, ":")
	cmd := exec.Command(server, "-H", host, "-p", port)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	endpoint = "http://" + address
	defer http.DefaultClient.CloseIdleConnections()
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		// There is no docker: jobs of Batch end as they begin.
		resp, err := http.Post(endpoint+"/moto-api/config", "application/json", strings.NewReader(`{"batch": {"use_docker": false}}`))
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Since(begun) > time.Minute {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("moto does not start: %v: %s", err, text)
		}
	}
	python := exec.Command(tool(t, "moto/bin/python"), "testdata/stack.py", "../../scripts/aws/template.yaml", endpoint)
	var said bytes.Buffer
	python.Stderr = &said
	out, err := python.Output()
	if err != nil {
		t.Fatalf("the stack: %v: %s", err, said.String())
	}
	if err := json.Unmarshal(out, &outputs); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL", endpoint)
	return endpoint, outputs
}

// Another implementation of AWS understands what is asked of EC2 and Batch, in the stack that users are to create.
func TestMoto(t *testing.T) {
	newCloud(t) // the bucket, as moto verifies no signature
	endpoint, out := newMoto(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	t.Run("ec2", func(t *testing.T) {
		p := newProvider(t, "ec2", map[string]any{"image": out["Image"], "subnet": out["Subnet"], "security_groups": []any{out["SecurityGroup"]}})
		defer p.Close()
		hosts, err := p.Check(t.Context())
		if err != nil || hosts[0].Err != nil || hosts[0].Detail != "8 x NVIDIA B200" {
			t.Fatalf("Check: got %+v, %v", hosts, err)
		}
		job := script(t, p, "true")
		job.GPU = "b200"
		h, err := p.Submit(t.Context(), job, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, d, f, err := p.open(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		var found struct {
			Instances []struct {
				InstanceType string  `xml:"instanceType"`
				KeyName      *string `xml:"keyName"`
				Role         *string `xml:"iamInstanceProfile>arn"`
				SubnetID     string  `xml:"subnetId"`
				Group        string  `xml:"groupSet>item>groupId"`
				HTTPTokens   string  `xml:"metadataOptions>httpTokens"`
			} `xml:"reservationSet>item>instancesSet>item"`
		}
		if err := a.ec2.call(t.Context(), "DescribeInstances", url.Values{"InstanceId.1": {d.ID}}, &found); err != nil || len(found.Instances) != 1 {
			t.Fatalf("got %+v, %v", found, err)
		}
		if i := found.Instances[0]; i.KeyName != nil || i.Role != nil || i.SubnetID != out["Subnet"] || i.Group != out["SecurityGroup"] ||
			i.HTTPTokens != "required" || i.InstanceType != "p6-b200.48xlarge" {
			t.Errorf("got %+v", i)
		}
		var behaviour struct {
			Value string `xml:"instanceInitiatedShutdownBehavior>value"`
		}
		err = a.ec2.call(t.Context(), "DescribeInstanceAttribute", url.Values{"InstanceId": {d.ID}, "Attribute": {"instanceInitiatedShutdownBehavior"}}, &behaviour)
		if err != nil || behaviour.Value != "terminate" {
			t.Errorf("shutdown behaviour: got %+v, %v", behaviour, err)
		}
		if s, err := f.look(t.Context(), d); err != nil || s.phase != remote.Running {
			t.Errorf("look: got %+v, %v", s, err)
		}
		if all, err := p.fleet(a, "ec2").list(t.Context()); err != nil || all[job.ID] != d.ID {
			t.Errorf("list: got %v, %v", all, err)
		}
		if err := p.Release(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if _, exit := wait(t, p, h); exit.End != remote.Cancelled {
			t.Errorf("after Release: got %+v", exit)
		}
		if all, err := p.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("List: got %v, %v", all, err)
		}
	})

	t.Run("ec2 without what is named", func(t *testing.T) {
		// moto takes any image and has no capacity reservations: those are in TestDenied and TestCapacityBlock.
		for key, value := range map[string]any{"subnet": "subnet-00000000", "security_groups": []any{"sg-00000000"}} {
			p := newProvider(t, "ec2", map[string]any{"image": out["Image"], key: value})
			defer p.Close()
			_, err := p.Submit(t.Context(), script(t, p, "true"), nil)
			var no *remote.Denied
			if !errors.As(err, &no) || no.Code != "no-such" {
				t.Errorf("%s: got %v, want no-such", key, err)
			}
		}
	})

	t.Run("batch", func(t *testing.T) {
		p := newProvider(t, "batch", map[string]any{"queue": out["Queue"], "job_definition": out["JobDefinition"]})
		defer p.Close()
		hosts, err := p.Check(t.Context())
		if err != nil || hosts[0].Err != nil || !strings.HasSuffix(hosts[0].Detail, ", revision 1, p6-b200.48xlarge up to 192 vCPUs") {
			t.Fatalf("Check: got %+v, %v", hosts, err)
		}
		job := script(t, p, "true")
		job.GPU = "b200"
		h, err := p.Submit(t.Context(), job, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, d, _, err := p.open(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		// moto gives vCPUs with a fraction, which the SDK does not read, so the job is looked at without it.
		req, err := http.NewRequestWithContext(t.Context(), "POST", endpoint+"/v1/describejobs", strings.NewReader(`{"jobs":["`+d.ID+`"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/batch/aws4_request, SignedHeaders=host, Signature=0")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var found struct {
			Jobs []struct {
				JobName string
				Timeout struct{ AttemptDurationSeconds int }
				Tags    map[string]string
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&found); err != nil || len(found.Jobs) != 1 {
			t.Fatalf("got %+v, %v", found, err)
		}
		if j := found.Jobs[0]; j.JobName != "fisub-"+job.ID || j.Timeout.AttemptDurationSeconds != 960 || j.Tags["fisub:run"] != "test" {
			t.Errorf("got %+v", j)
		}
		if all, err := p.List(t.Context()); err != nil || len(all) != 1 || all[0].Job != job.ID {
			t.Errorf("List: got %+v, %v", all, err)
		}
		if _, err := a.batch.TerminateJob(t.Context(), &batch.TerminateJobInput{JobId: &d.ID, Reason: aws.String("released by fisub")}); err != nil {
			t.Errorf("TerminateJob: %v", err)
		}
		p = newProvider(t, "batch", map[string]any{"queue": "none", "job_definition": out["JobDefinition"]})
		defer p.Close()
		var no *remote.Denied
		if _, err := p.Submit(t.Context(), script(t, p, "true"), nil); !errors.As(err, &no) || no.Code != "no-such" {
			t.Errorf("no such queue: got %v", err)
		}
	})
}

// The template is sound in the eyes of AWS's own checker.
func TestTemplate(t *testing.T) {
	out, err := exec.Command(tool(t, "moto/bin/cfn-lint"), "--non-zero-exit-code", "informational", "../../scripts/aws/template.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
