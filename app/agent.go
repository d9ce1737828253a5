package app

import (
	"context"
	"fmt"
	"io"
	"os"

	"fisub/device/cuda/stamp"
	"fisub/remote/agent"
	"fisub/remote/aws/mailbox"
)

// agentMain runs `fisub agent`, the hidden command that executes jobs on a host. It handles signals itself.
func agentMain(args []string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err == nil {
		a := &agent.Agent{Version: Version, GPUs: hostGPUs, Self: []string{self, "agent"}}
		if len(args) > 0 && args[0] == "mailbox" {
			err = mailbox.Main(mailbox.Options{Agent: a, Log: stderr}, args[1:])
		} else {
			err = a.Main(context.Background(), args, stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "fisub: %v\n", err)
		return exitError
	}
	return exitOK
}

func hostGPUs() ([]agent.GPU, error) {
	listed, err := stamp.GPUs()
	if err != nil {
		return nil, err
	}
	gpus := make([]agent.GPU, len(listed))
	for i, g := range listed {
		gpus[i] = agent.GPU{UUID: g.UUID, Name: g.Name}
		for _, p := range g.Processes {
			gpus[i].Processes = append(gpus[i].Processes, fmt.Sprintf("%d (%s, %.1f GiB)", p.PID, p.Name,
				float64(p.MemoryBytes)/(1<<30)))
		}
	}
	return gpus, nil
}
