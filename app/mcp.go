package app

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/app/mcp"
	"fisub/internal/event"
)

func (a *app) mcpCommand() *cli.Command {
	return &cli.Command{
		Name:  "mcp",
		Usage: "serve fisub's commands to an agent over stdin and stdout (MCP)",
		Action: func(c *cli.Context) error {
			root, err := filepath.Abs(a.Path("."))
			if err != nil {
				return err
			}
			// All paths in results are then relative to the project.
			if err := enter(root); err != nil {
				return err
			}
			before := []string{os.Args[0]}
			for _, name := range []string{"config", "dataset"} {
				if value := c.String(name); value != "" {
					before = append(before, "--"+name+"="+value)
				}
			}
			call := func(ctx context.Context, args []string, listener event.Sink) (string, string, int) {
				var stdout, stderr bytes.Buffer
				status := run(ctx, append(before[:len(before):len(before)], args...), nil, &stdout, &stderr, listener)
				return stdout.String(), stderr.String(), status
			}
			return mcp.Serve(c.Context, root, Version, call, a.term.In, a.stdout)
		},
	}
}

// enter makes dir the working directory. Relative paths in fisub's environment variables keep their meaning.
func enter(dir string) error {
	for _, name := range []string{"FIB_DATASET_PATH", "FISUB_CACHE"} {
		if value := os.Getenv(name); value != "" {
			abs, err := filepath.Abs(value)
			if err != nil {
				return err
			}
			if err := os.Setenv(name, abs); err != nil {
				return err
			}
		}
	}
	return os.Chdir(dir)
}
