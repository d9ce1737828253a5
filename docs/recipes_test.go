package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/longtest"
	"fisub/remote/providers"
)

// blocks are the indented blocks of a page.
func blocks(t *testing.T, name string) (all []string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	block := ""
	for line := range strings.Lines(string(data) + "\nend\n") {
		if text, ok := strings.CutPrefix(line, "    "); ok {
			block += text
			continue
		}
		if block != "" {
			all = append(all, block)
		}
		block = ""
	}
	return all
}

const page = "remote/recipes.md"

// Every table of the recipes opens, and every host that a table of ssh names stands in the page or is the provider's.
func TestRecipeTables(t *testing.T) {
	n := 0
	for _, block := range blocks(t, page) {
		if !strings.HasPrefix(block, "[remote.") {
			continue
		}
		n++
		c, err := config.Parse("config.toml", []byte(block+"[solution]\nname = \"s\"\ndefinition = \"d\"\nauthor = \"a\"\n"+
			"[build]\nlanguage = \"cuda\"\nentry_point = \"kernel.cu::kernel\"\n"))
		if err != nil {
			t.Errorf("%s%v", block, err)
			continue
		}
		for _, table := range c.Remote {
			if _, err := providers.Decode(table); err != nil {
				t.Errorf("%s%v", block, err)
			}
		}
	}
	if n != 6 {
		t.Errorf("got %d tables", n)
	}
}

// OpenSSH reads every host of the recipes with each of its lines.
func TestRecipeHosts(t *testing.T) {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		longtest.Missing(t, "ssh", err)
	}
	n := 0
	for _, block := range blocks(t, page) {
		if !strings.HasPrefix(block, "Host ") {
			continue
		}
		n++
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(block), "\n")
		host := strings.TrimPrefix(lines[0], "Host ")
		out, err := exec.Command(ssh, "-G", "-F", file, host).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", host, err, out)
			continue
		}
		for _, line := range lines[1:] {
			key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			key = strings.ToLower(key)
			switch key {
			case "controlpath": // ssh fills it in
				value = ""
			case "controlpersist":
				value = "28800"
			}
			if !strings.Contains("\n"+string(out), "\n"+key+" "+value) {
				t.Errorf("%s: %s %s is not what ssh has read", host, key, value)
			}
		}
	}
	if n != 5 {
		t.Errorf("got %d hosts", n)
	}
}

// Every aws command of the recipes, and of the page on AWS, has an operation and options that AWS's own models know.
func TestRecipeAWS(t *testing.T) {
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(root, "aws-tools/moto/bin/python")
	if _, err := os.Stat(python); err != nil {
		longtest.CI(t, "reads the models of AWS")
		longtest.Missing(t, "aws", "no models of AWS")
	}
	var commands []string
	for _, name := range []string{page, "remote/aws.md"} {
		for _, block := range blocks(t, name) {
			for _, line := range strings.Split(strings.ReplaceAll(block, "\\\n", " "), "\n") {
				line, _, _ = strings.Cut(line, " #")
				if strings.HasPrefix(line, "aws ") && !strings.HasPrefix(line, "aws cloudformation deploy") {
					commands = append(commands, line)
				}
			}
		}
	}
	if len(commands) < 8 {
		t.Fatalf("got %d commands", len(commands))
	}
	cmd := exec.Command(python, "testdata/awscli.py")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
