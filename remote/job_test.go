package remote_test

import (
	"strings"
	"testing"
	"time"

	"fisub/remote"
)

func TestJobCheck(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	good := func() *remote.Job {
		return &remote.Job{ID: "fisub-20260102-1", Args: []string{"fisub", "local"}, Limit: time.Second,
			Env:   map[string]string{"A_1": "b"},
			Files: []remote.File{{Name: "fisub", SHA256: hash, Exec: true}, {Name: "a/b.txt", SHA256: hash, Size: 3}}}
	}
	for _, c := range []struct {
		name string
		bad  func(*remote.Job)
		want string
	}{
		{"good", func(*remote.Job) {}, ""},
		{"empty id", func(j *remote.Job) { j.ID = "" }, "not a valid id"},
		{"id with a slash", func(j *remote.Job) { j.ID = "a/b" }, "not a valid id"},
		{"id of 64", func(j *remote.Job) { j.ID = strings.Repeat("a", 64) }, "not a valid id"},
		{"no limit", func(j *remote.Job) { j.Limit = 0 }, "no time limit"},
		{"no program", func(j *remote.Job) { j.Args = nil }, "no program"},
		{"program is data", func(j *remote.Job) { j.Args[0] = "a/b.txt" }, "is not an executable file"},
		{"absolute", func(j *remote.Job) { j.Files[1].Name = "/etc/x" }, "is outside the bundle"},
		{"up", func(j *remote.Job) { j.Files[1].Name = "../x" }, "is outside the bundle"},
		{"up inside", func(j *remote.Job) { j.Files[1].Name = "a/../../x" }, "is outside the bundle"},
		{"newline", func(j *remote.Job) { j.Files[1].Name = "a\nb" }, "is outside the bundle"},
		{"twice", func(j *remote.Job) { j.Files[1].Name = "fisub" }, "duplicate file fisub"},
		{"below a file", func(j *remote.Job) { j.Files[1].Name = "fisub/x" }, `"fisub" is both a file and a folder`},
		{"short hash", func(j *remote.Job) { j.Files[1].SHA256 = "0a" }, "invalid SHA-256"},
		{"hash with a path", func(j *remote.Job) { j.Files[1].SHA256 = "../" + hash[3:] }, "invalid SHA-256"},
		{"upper hash", func(j *remote.Job) { j.Files[1].SHA256 = strings.ToUpper(hash) }, "invalid SHA-256"},
		{"size", func(j *remote.Job) { j.Files[1].Size = -1 }, "-1 bytes"},
		{"zero byte", func(j *remote.Job) { j.Args[1] = "a\x00" }, "zero byte"},
		{"long arguments", func(j *remote.Job) { j.Args[1] = strings.Repeat("x", 1<<17) }, "more than 65536"},
		{"environment", func(j *remote.Job) { j.Env["A=B"] = "" }, "is not valid in an environment"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := good()
			c.bad(j)
			err := j.Check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
