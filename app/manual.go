package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/docs"
	"fisub/internal/config"
	"fisub/internal/manual"
	"fisub/internal/ui"
	"fisub/remote"
)

// straightPath is what `fisub` alone shows, in the order in which a newcomer needs it.
var straightPath = []struct{ line, what string }{
	{"fisub doctor", "what can this machine do, and what does it lack?"},
	{"fisub init my-kernel", "a project that runs as it stands, to begin with"},
	{"fisub check", "is this submission sound? no GPU needed"},
	{"fisub local", "run its workloads here: on the GPU, or on an emulation of it"},
	{"fisub remote --gpu b200", "run them on hosts with GPUs, and bring the results back"},
	{"fisub compare last~1 last", "is the newest run faster than the one before it?"},
	{"fisub report last", "a run as one page"},
	{"fisub pack", "write solution.json as the contest's packer does"},
	{"fisub submit", "tag exactly what was tested"},
}

// pathText is the straight path over those commands that there are, in the form of examples.
func pathText(commands []*cli.Command) string {
	var b strings.Builder
	for _, step := range straightPath {
		if findCommand(commands, strings.Fields(step.line)[1]) != nil {
			fmt.Fprintf(&b, "   %-26s   %s\n", step.line, step.what)
		}
	}
	return b.String()
}

func findCommand(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) && !c.Hidden {
			return c
		}
	}
	return nil
}

func topicNames() []string {
	var names []string
	for _, t := range docs.Topics() {
		names = append(names, t.Name)
	}
	return names
}

const exitText = "Exit status: 0 done and all passed; 1 fisub could not do it; 2 usage or invalid input;\n" +
	"3 it ran, and some workload did not pass, or compare found B slower; 130 interrupted."

// greet is what `fisub` alone prints.
func greet(w io.Writer, commands []*cli.Command) error {
	_, err := fmt.Fprintf(w, "fisub takes a GPU kernel submission for the FlashInfer kernel contest from source to result.\n\n%s\n"+
		"fisub help lists all commands and topics, fisub COMMAND --help the flags of one.\n", pathText(commands))
	return err
}

func (a *app) helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "explain a command or a topic",
		ArgsUsage: "[COMMAND|TOPIC]",
		Description: "Topics: " + strings.Join(topicNames(), ", ") + ".\n\n" +
			"   fisub help verdicts      what each status means, and how outputs are judged\n" +
			"   fisub help remote gc     the same as fisub remote gc --help",
		Action: a.help,
	}
}

func (a *app) help(c *cli.Context) error {
	words := c.Args().Slice()
	if len(words) == 0 {
		return cli.ShowAppHelp(c)
	}
	commands := c.App.Commands
	command := findCommand(commands, words[0])
	if topic, err := docs.Find(words[0]); err == nil && len(words) == 1 {
		text := manual.Plain(topic.Text, min(ui.Width(a.stdout), 100))
		if command != nil {
			text += fmt.Sprintf("\nfisub %s --help lists the flags.\n", command.Name)
		}
		_, err := io.WriteString(a.stdout, text)
		return err
	}
	if _, err := docs.Find(words[0]); err == nil && command == nil {
		return usage("fisub help "+words[0], "help: unexpected argument %q", words[1])
	}
	for i, word := range words {
		if command = findCommand(commands, word); command == nil {
			known := commandNames(commands)
			if i == 0 {
				known = append(known, topicNames()...)
				return unknown("command or topic", word, known)
			}
			return unknown(words[i-1]+" command", word, known)
		}
		commands = command.Subcommands
	}
	return a.cli().RunContext(c.Context, append(append([]string{"fisub"}, words...), "--help"))
}

func (a *app) manCommand() *cli.Command {
	return &cli.Command{
		Name:        "man",
		Usage:       "print the man page, of all commands",
		Description: "   fisub man >fisub.1       then: man -l fisub.1",
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			var sections []manual.Section
			for _, name := range []string{"exit-status", "environment", "files"} {
				topic, err := docs.Find(name)
				if err != nil {
					return err
				}
				sections = append(sections, manual.Section{Title: topic.Title, Text: topic.Text})
			}
			_, err := io.WriteString(a.stdout, manual.Man(Manual(), Version, sections))
			return err
		},
	}
}

// Manual is the command tree, as the man page and the pages of docs/commands show it.
func Manual() *manual.Command {
	app := (&app{}).cli()
	root := &manual.Command{Name: app.Name, Usage: app.Usage, Global: flagsOf(app.Flags, true)}
	root.Text, root.Examples = manual.Split(app.Description)
	root.Global = append(root.Global, manual.Flag{Names: []string{"--help", "-h"}, Usage: "show help"},
		manual.Flag{Names: []string{"--version"}, Usage: "print the version"})
	root.Commands = commandsOf(app.Name, app.Commands)
	return root
}

func commandsOf(parent string, commands []*cli.Command) (all []*manual.Command) {
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		m := &manual.Command{Name: parent + " " + c.Name, Usage: c.Usage, Args: c.ArgsUsage, Flags: flagsOf(c.Flags, false)}
		m.Text, m.Examples = manual.Split(c.Description)
		m.Commands = commandsOf(m.Name, c.Subcommands)
		all = append(all, m)
	}
	return all
}

// flagsOf gives the visible flags: those that every command has, or the others.
func flagsOf(flags []cli.Flag, global bool) (all []manual.Flag) {
	for _, f := range flags {
		visible, ok := f.(cli.VisibleFlag)
		categorised, cok := f.(cli.CategorizableFlag)
		if ok && !visible.IsVisible() || cok && (categorised.GetCategory() == globalCategory) != global {
			continue
		}
		all = append(all, flagOf(f))
	}
	return all
}

func flagOf(f cli.Flag) manual.Flag {
	var m manual.Flag
	for _, name := range f.Names() {
		if len(name) == 1 {
			m.Names = append(m.Names, "-"+name)
		} else {
			m.Names = append(m.Names, "--"+name)
		}
	}
	if d, ok := f.(cli.DocGenerationFlag); ok {
		m.Usage = strings.ReplaceAll(d.GetUsage(), "`", "")
		if d.TakesValue() {
			m.Value = "VALUE"
			if parts := strings.SplitN(d.GetUsage(), "`", 3); len(parts) == 3 {
				m.Value = parts[1]
			}
			m.Default = strings.Trim(d.GetDefaultText(), `"`)
		}
	}
	return m
}

// RemoteKeys are the keys of a table [remote.NAME], by the kind of its provider; those that all have are under "".
func RemoteKeys() map[string][]config.Key {
	keys := map[string][]config.Key{"": new(remote.Common).CommonKeys()}
	for kind, fresh := range providers {
		keys[kind] = fresh().Keys()
	}
	return keys
}
