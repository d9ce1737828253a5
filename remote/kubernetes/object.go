package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

// Labels and annotations of objects that fisub creates.
const (
	labelBy   = "app.kubernetes.io/managed-by" // "fisub"
	labelUser = "fisub/user"                   // the submitter, hashed
	labelName = "fisub/name"                   // the Job's name, on the Job and its pod
	noteJob   = "fisub/job"                    // Job.ID
	noteKind  = "fisub/"                       // prefix for the job's own labels
	queueKey  = "kueue.x-k8s.io/queue-name"
	gpuKey    = "nvidia.com/gpu"
	product   = "nvidia.com/gpu.product"
)

const (
	container = "fisub" // in pods that fisub creates

	// boot is the time limit for pulling the image, and again for the client to upload the bundle.
	boot = 15 * time.Minute
	// stopTime is the time the agent gets to end a job at its limit.
	stopTime = 2 * time.Minute
	// exitDelay is how long a pod stays after its job has ended, so that a client can read the rest. Then the output
	// is only in the pod's log.
	exitDelay = time.Minute
	// beyond is the longest time that a pod exists on top of its job's limit.
	beyond = 2*boot + stopTime + exitDelay
	// kept is how long the Job and the log stay after the GPU is free.
	kept = 24 * time.Hour
)

// hold is the first process of a pod. It waits up to $2 seconds for the client to start the job in folder $1, then for
// the job to end. It copies the job's output to the pod's log, then waits up to $3 seconds until the folder is gone.
const hold = `dir=$1; trap 'exit 0' TERM
pause() { sleep 1 & wait $!; }
n=0; until [ -e "$dir/` + agent.StateName + `" ]; do n=$((n+1)); [ $n -le "$2" ] || exit 3; pause; done
until [ -e "$dir/` + agent.ExitName + `" ]; do [ -e "$dir" ] || exit 0; pause; done
for f in ` + agent.EventsName + ` ` + agent.LogName + ` ` + agent.ExitName + `; do
[ ! -e "$dir/$f" ] || { printf '\036%s %d\n' $f "$(wc -c <"$dir/$f")"; cat "$dir/$f"; }; done
n=0; while [ -e "$dir" ] && [ $n -lt "$3" ]; do n=$((n+1)); pause; done`

// parseLog parses the output of hold. It returns the content by file name, or nil if the beginning of the log is lost.
func parseLog(log []byte) map[string][]byte {
	files := map[string][]byte{}
	for len(log) > 0 {
		var name string
		var size int
		line, _, _ := strings.Cut(string(log[:min(len(log), 100)]), "\n")
		if n, _ := fmt.Sscanf(line, "\x1e%s %d", &name, &size); n != 2 || size < 0 || size > len(log)-len(line)-1 {
			return nil
		}
		log = log[len(line)+1:]
		files[name], log = log[:size], log[size:]
	}
	return files
}

// objectName returns the name of the job's Job. It must be a valid label, with room for the suffix that the pod adds.
func objectName(id string) string {
	if len(id) <= 52 && !strings.HasSuffix(id, "-") {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "fisub-" + hex.EncodeToString(sum[:10])
}

type object = map[string]any

// manifest returns the Job of a job: one pod, one attempt. It ends without a client: the pod at its deadline, a waiting
// Job at its own. The cluster removes both after a day. nodes are values of the label product.
func manifest(c *Config, job *remote.Job, user string, nodes []string) object {
	name := objectName(job.ID)
	notes := object{noteJob: job.ID}
	for k, v := range job.Labels {
		notes[noteKind+"label-"+k] = plain.Brief(v, 200)
	}
	labels := object{labelBy: "fisub", labelUser: user, labelName: name}
	meta := object{"name": name, "labels": labels, "annotations": notes}
	pod := object{"metadata": object{"labels": labels, "annotations": notes}, "spec": podSpec(c, job, nodes)}
	life := job.Limit + beyond
	spec := object{"backoffLimit": 0, "ttlSecondsAfterFinished": seconds(kept), "template": pod,
		"activeDeadlineSeconds": seconds(c.Pending + life)}
	if c.Queue != "" {
		spec["suspend"] = true
		meta["labels"] = object{labelBy: "fisub", labelUser: user, labelName: name, queueKey: c.Queue}
	}
	pod["spec"].(object)["activeDeadlineSeconds"] = seconds(life)
	return object{"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
}

func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func podSpec(c *Config, job *remote.Job, nodes []string) object {
	memory := fmt.Sprintf("%dMi", c.Memory)
	requests := object{"cpu": fmt.Sprintf("%dm", int(c.CPU*1000)), "memory": memory}
	limits := object{"memory": memory}
	one := object{
		"name": container, "image": c.Image,
		"command": []string{"/bin/sh", "-c", hold, "sh", agent.JobDir(c.Workdir, job.ID), fmt.Sprint(seconds(boot)),
			fmt.Sprint(seconds(exitDelay))},
		"env":       []object{{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}},
		"resources": object{"requests": requests, "limits": limits},
		"securityContext": object{"allowPrivilegeEscalation": false, "capabilities": object{"drop": []string{"ALL"}},
			"seccompProfile": object{"type": "RuntimeDefault"}},
	}
	spec := object{"restartPolicy": "Never", "containers": []object{one}, "automountServiceAccountToken": false,
		"enableServiceLinks": false, "terminationGracePeriodSeconds": 5}
	var tolerations []object
	if job.GPU != "" {
		requests[gpuKey], limits[gpuKey] = 1, 1
		tolerations = append(tolerations, object{"key": gpuKey, "operator": "Exists"})
	}
	for _, t := range c.Tolerations {
		tolerations = append(tolerations, toleration(t))
	}
	if len(tolerations) > 0 {
		spec["tolerations"] = tolerations
	}
	if len(c.NodeSelector) > 0 {
		selector := object{}
		for _, l := range c.NodeSelector {
			key, value, _ := strings.Cut(l, "=")
			selector[key] = value
		}
		spec["nodeSelector"] = selector
	}
	if len(nodes) > 0 {
		spec["affinity"] = object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{
			"nodeSelectorTerms": []object{{"matchExpressions": []object{
				{"key": product, "operator": "In", "values": nodes}}}}}}}
	}
	if c.Volume != "" {
		spec["volumes"] = []object{{"name": "work", "persistentVolumeClaim": object{"claimName": c.Volume}}}
		one["volumeMounts"] = []object{{"name": "work", "mountPath": c.Workdir}}
	}
	if c.User > 0 {
		spec["securityContext"] = object{"runAsUser": c.User, "runAsGroup": c.User, "fsGroup": c.User, "runAsNonRoot": true}
	}
	if c.PullSecret != "" {
		spec["imagePullSecrets"] = []object{{"name": c.PullSecret}}
	}
	if c.Priority != "" {
		spec["priorityClassName"] = c.Priority
	}
	if c.ServiceAccount != "" {
		spec["serviceAccountName"] = c.ServiceAccount
	}
	return spec
}

// toleration parses KEY or KEY=VALUE, with an optional :EFFECT (without one, all effects).
func toleration(s string) object {
	s, effect, _ := strings.Cut(s, ":")
	key, value, equal := strings.Cut(s, "=")
	t := object{"key": key, "operator": "Exists"}
	if equal {
		t["operator"], t["value"] = "Equal", value
	}
	if effect != "" {
		t["effect"] = effect
	}
	return t
}

// isGPU reports whether a value of the label product is a whole GPU of the given kind: "NVIDIA-B200" matches "b200";
// "NVIDIA-GB200" and partitions do not.
func isGPU(label, kind string) bool {
	split := func(s string) []string {
		other := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
		return strings.FieldsFunc(strings.ToLower(s), other)
	}
	words, want := split(label), strings.Join(split(kind), "")
	if slices.Contains(words, "mig") || slices.Contains(words, "shared") {
		return false
	}
	for i := range words {
		for j := i + 1; j <= len(words); j++ {
			if strings.Join(words[i:j], "") == want {
				return true
			}
		}
	}
	return false
}
