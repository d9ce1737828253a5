package aws

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"fisub/remote"
)

// An instances is the fleet of mode ec2: one instance for each job.
type instances struct {
	p *Provider
	a *account
}

// blockEnd is how long before the end of a capacity block AWS ends its instances.
const blockEnd = 30 * time.Minute

// What EC2 calls the ways to pay for an instance, other than on demand; capacityBlock is also what it calls such a reservation.
const (
	capacityBlock = "capacity-block"
	spot          = "spot"
)

func (s *instances) check(ctx context.Context) (remote.Host, error) {
	c := s.p.config
	h := remote.Host{Name: c.InstanceType + " in " + s.a.region, State: "ready"}
	var kinds instanceTypes
	if err := s.a.ec2.call(ctx, "DescribeInstanceTypes", url.Values{"InstanceType.1": {c.InstanceType}}, &kinds); err != nil {
		return h, err
	}
	var gpus []string
	for _, g := range kinds.GPUs {
		gpus = append(gpus, fmt.Sprintf("%d x %s %s", g.Count, g.Manufacturer, g.Name))
	}
	h.Detail = strings.Join(gpus, ", ")
	if len(gpus) == 0 && c.gpu != "" {
		return h, &remote.Denied{Code: "arch", Provider: s.p.name, Text: "instances of type " + c.InstanceType + " have no GPU", Hint: "set instance_type to one with the GPU"}
	}
	job := &remote.Job{ID: "check", Limit: time.Minute}
	market, err := s.market(ctx, job)
	if err != nil {
		return h, err
	}
	form := s.p.runForm(job, strings.Repeat("0", 64), "https://example.com/", market)
	form.Set("DryRun", "true")
	form.Del("ClientToken")
	if err := s.a.ec2.call(ctx, "RunInstances", form, nil); code(err) != "DryRunOperation" {
		return h, err
	}
	return h, nil
}

// market says how the instance is paid for: "" on demand. For a reservation it is what AWS says of it.
func (s *instances) market(ctx context.Context, job *remote.Job) (string, error) {
	c := s.p.config
	if c.CapacityReservation == "" {
		if c.Spot {
			return spot, nil
		}
		return "", nil
	}
	var found reservations
	if err := s.a.ec2.call(ctx, "DescribeCapacityReservations", url.Values{"CapacityReservationId.1": {c.CapacityReservation}}, &found); err != nil {
		return "", err
	}
	no := func(code, hint, format string, args ...any) error {
		return &remote.Denied{Code: code, Provider: s.p.name, Text: "capacity reservation " + c.CapacityReservation + " " + fmt.Sprintf(format, args...), Hint: hint}
	}
	if len(found.All) == 0 {
		return "", no("no-such", "set capacity_reservation to one of this region", "does not exist in %s", s.a.region)
	}
	r := found.All[0]
	if kind := r.InstanceType; kind != "" && kind != c.InstanceType {
		return "", no("no-such", "set instance_type to "+kind, "is for %s, not %s", kind, c.InstanceType)
	}
	if r.State != "active" {
		hint := "wait until it is active, or leave it out"
		if r.Start != nil {
			hint = "it begins at " + r.Start.UTC().Format(time.RFC3339)
		}
		return "", no("capacity", hint, "is %s", r.State)
	}
	market, end := "", r.End
	if r.Type == capacityBlock {
		market = capacityBlock
		if end != nil {
			early := end.Add(-blockEnd)
			end = &early
		}
	}
	if end != nil && time.Now().Add(job.Limit+margin).After(*end) {
		return "", no("limit", "give the job a lower limit, or use another reservation",
			"lets its instances run until %s only, a job of %v may need until %s", end.UTC().Format(time.RFC3339), job.Limit, time.Now().Add(job.Limit+margin).UTC().Format(time.RFC3339))
	}
	return market, nil
}

func (s *instances) ready(ctx context.Context, job *remote.Job) error {
	_, err := s.market(ctx, job)
	return err
}

func (s *instances) start(ctx context.Context, job *remote.Job, program, boot string) (string, error) {
	market, err := s.market(ctx, job)
	if err != nil {
		return "", err
	}
	var out started
	if err := s.a.ec2.call(ctx, "RunInstances", s.p.runForm(job, program, boot, market), &out); err != nil {
		return "", err
	}
	if len(out.Instances) == 0 {
		return "", fmt.Errorf("EC2 started no instance")
	}
	return out.Instances[0].ID, nil
}

// runForm is what EC2 is asked for: an instance without a key, a role or the old metadata service, that is gone as soon as it
// shuts down. The job's id makes it one instance however often it is asked for.
func (p *Provider) runForm(job *remote.Job, program, boot, market string) url.Values {
	c := p.config
	form := url.Values{
		"ClientToken":                       {job.ID},
		"ImageId":                           {c.Image},
		"InstanceType":                      {c.InstanceType},
		"MinCount":                          {"1"},
		"MaxCount":                          {"1"},
		"InstanceInitiatedShutdownBehavior": {"terminate"},
		"MetadataOptions.HttpTokens":        {"required"},
		"MetadataOptions.HttpPutResponseHopLimit": {"1"},
		"UserData": {base64.StdEncoding.EncodeToString([]byte(userData(job, program, boot)))},
	}
	labels := tags(job)
	labels["Name"], labels["fisub:prefix"] = "fisub "+job.ID, c.Bucket+"/"+c.Prefix
	for i, kind := range []string{"instance", "volume"} {
		form.Set(fmt.Sprintf("TagSpecification.%d.ResourceType", i+1), kind)
		for j, key := range slices.Sorted(maps.Keys(labels)) {
			tag := fmt.Sprintf("TagSpecification.%d.Tag.%d.", i+1, j+1)
			form.Set(tag+"Key", key)
			form.Set(tag+"Value", labels[key])
		}
	}
	number(form, "SecurityGroupId", c.SecurityGroups...)
	if c.Subnet != "" {
		form.Set("SubnetId", c.Subnet)
	}
	if c.CapacityReservation != "" {
		form.Set("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId", c.CapacityReservation)
	}
	if market != "" {
		form.Set("InstanceMarketOptions.MarketType", market)
	}
	if market == spot {
		form.Set("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time")
		form.Set("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate")
	}
	return form
}

// userData is the script that the instance runs when it has booted. It ends the instance whatever happens: at once when the
// job has ended, by a timer where that does not come.
func userData(job *remote.Job, program, boot string) string {
	return fmt.Sprintf(`#!/bin/sh
shutdown -h +%d
trap 'shutdown -h now' EXIT
FISUB_BOOT='%s'
FISUB_JOB='%s'
FISUB_PROGRAM='%s'
(
%s)
`, int(math.Ceil((job.Limit + margin).Minutes())), boot, job.ID, program, hostScript)
}

// find gives the job's instance, or nil. Several can only be where ids of jobs are not unique; the first that lives is taken.
func (s *instances) find(ctx context.Context, d *data) (*instance, error) {
	all, err := s.tagged(ctx, url.Values{"Filter.1.Name": {"tag:fisub:job"}, "Filter.1.Value.1": {d.job}})
	var found *instance
	for i := range all {
		if in := &all[i]; found == nil || in.ID == d.ID || gone(found) && !gone(in) {
			found = in
		}
	}
	return found, err
}

func gone(i *instance) bool { return i.State == "terminated" || i.State == "shutting-down" }

// tagged gives the instances that the filters of form let through.
func (s *instances) tagged(ctx context.Context, form url.Values) (all []instance, err error) {
	for {
		var page instancePage
		if err := s.a.ec2.call(ctx, "DescribeInstances", form, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Instances...)
		if page.Next == "" {
			return all, nil
		}
		if page.Next == form.Get("NextToken") {
			return nil, fmt.Errorf("EC2 gives the same page of instances again")
		}
		form.Set("NextToken", page.Next)
	}
}

func (s *instances) list(ctx context.Context) (map[string]string, error) {
	form := url.Values{"Filter.1.Name": {"tag:fisub:prefix"}, "Filter.1.Value.1": {s.p.config.Bucket + "/" + s.p.config.Prefix},
		"Filter.2.Name": {"instance-state-name"}}
	number(form, "Filter.2.Value", "pending", "running", "stopping", "stopped")
	all, err := s.tagged(ctx, form)
	found := map[string]string{}
	for _, i := range all {
		for _, t := range i.Tags {
			if t.Key == "fisub:job" && remote.ValidID(t.Value) {
				found[t.Value] = i.ID
			}
		}
	}
	return found, err
}

func (s *instances) look(ctx context.Context, d *data) (status, error) {
	i, err := s.find(ctx, d)
	if err != nil {
		return status{}, err
	}
	if i == nil || i.State == "" {
		if time.Since(d.At) < newJob && d.ID != "" {
			return status{phase: remote.Starting, text: d.ID}, nil
		}
		return status{exit: &remote.Exit{End: remote.Lost, Text: "EC2 does not know the job's instance any more"}}, nil
	}
	switch i.State {
	case "pending":
		return status{phase: remote.Starting, text: i.ID + " is pending"}, nil
	case "running":
		return status{phase: remote.Running, text: i.ID}, nil
	}
	return status{exit: instanceExit(i), hurry: i.State == "shutting-down"}, nil
}

// instanceExit is the end of a job that left no exit itself.
func instanceExit(i *instance) *remote.Exit {
	exit := &remote.Exit{End: remote.Lost, Text: fmt.Sprintf("%s is %s", i.ID, i.State)}
	if i.Message != "" {
		exit.Text += ": " + oneLine(i.Message, 300)
	}
	switch reason := i.Reason; {
	case reason == "Client.UserInitiatedShutdown":
		exit.End = remote.Cancelled
	case strings.HasPrefix(reason, "Server.Spot"):
		exit.Hint = "AWS took the spot instance back: the job can be submitted again, or with spot = false"
	case strings.Contains(reason, "Insufficient"):
		exit.Hint = "AWS has no free instance of this type now: try another zone (subnet) or region, a capacity block, or later"
	case strings.HasPrefix(reason, "Client.Volume"), strings.HasPrefix(reason, "Client.InvalidSnapshot"):
		exit.Hint = "the image's disk cannot be made: check image, and the quota of EBS volumes"
	case reason == "Client.InstanceInitiatedShutdown":
		exit.Hint = "the instance ended before the job left its exit: see the log"
	}
	return exit
}

// stop ends the instance, also one that EC2 does not show yet.
func (s *instances) stop(ctx context.Context, d *data) error {
	i, err := s.find(ctx, d)
	if err != nil {
		return err
	}
	id := d.ID
	if i != nil {
		if gone(i) {
			return nil
		}
		id = i.ID
	}
	if id == "" || i == nil && time.Since(d.At) > newJob {
		return nil
	}
	err = s.a.ec2.call(ctx, "TerminateInstances", url.Values{"InstanceId.1": {id}}, nil)
	if strings.HasPrefix(code(err), "InvalidInstanceID") {
		return nil
	}
	return err
}

func (s *instances) words(ctx context.Context, d *data) []string {
	i, err := s.find(ctx, d)
	if err != nil || i == nil {
		return nil
	}
	var said console
	if err := s.a.ec2.call(ctx, "GetConsoleOutput", url.Values{"InstanceId": {i.ID}}, &said); err != nil {
		return nil
	}
	text, err := base64.StdEncoding.DecodeString(said.Output)
	if err != nil {
		return nil
	}
	// The console has everything that the system said while it booted.
	var lines []string
	for _, line := range strings.Split(string(text), "\n") {
		if at := strings.Index(line, "fisub: "); at >= 0 {
			lines = append(lines, oneLine(line[at:], 1000))
		}
	}
	return lines
}
