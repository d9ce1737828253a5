package pyworker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/device"
)

// openGPU starts a worker on the first GPU.
func openGPU(t *testing.T, c worker.Command) (*worker.Client, device.Info) {
	t.Helper()
	client, err := worker.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	info, err := client.Open(t.Context(), "cuda", device.Options{CacheDir: t.TempDir()})
	var we *worker.Error
	if errors.As(err, &we) && we.Kind == worker.Machine && slices.Contains([]string{"no-gpu", "no-torch-cuda"}, we.Code) && !required("cuda") {
		t.Skipf("no GPU: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return client, info
}

func TestGPU(t *testing.T) {
	c := command(t)
	client, info := openGPU(t, c)
	if info.Emulated || !strings.HasPrefix(info.Arch, "sm_") || info.L2Bytes <= 0 || info.MemoryBytes <= 0 || info.Driver == "" ||
		!strings.HasPrefix(info.UUID, "GPU-") || info.CUDAVersion == "" || info.Libs["cuda"] != info.CUDAVersion {
		t.Errorf("device: got %+v, want its arch, L2, memory, driver, uuid and CUDA", info)
	}
	const good = "    assert x.is_cuda and y.is_cuda\n    y.copy_(x * c)\n    total.fill_(x.sum())\n"
	for _, tc := range []struct {
		name, body string
		kind       worker.Kind // "" where the call is to succeed
		text       string
	}{
		{"good", good, "", ""},
		{"another stream", "    import torch\n    torch.cuda.set_stream(torch.cuda.Stream())\n" + good, "", ""},
		{"out of memory", "    import torch\n    torch.empty(1 << 50, device='cuda')\n", worker.Call, "OutOfMemoryError: "},
		{"a refused launch", "    import torch\n    torch.cuda._sleep('x')\n", worker.Call, "expected 'int'"},
		{"good again", good, "", ""},
		// An index out of bounds is an assertion on the device, which is noticed after the call and stays.
		{"a device fault", "    import torch\n    y.copy_(x[torch.tensor([0, 1, 1 << 20], device=x.device)])\n", worker.Fault, ""},
		{"good in a new process", good, "", ""},
	} {
		if err := build(t, client, "def run(x, c, y, total):\n"+tc.body, true); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		for range 2 {
			out := load(t, client)
			_, err := client.Run(t.Context(), out)
			var we *worker.Error
			if tc.kind != "" {
				if !errors.As(err, &we) || we.Kind != tc.kind || !strings.Contains(we.Text, tc.text) {
					t.Errorf("%s: got %v, want %s error with %q", tc.name, err, tc.kind, tc.text)
				}
				if tc.kind == worker.Fault {
					client, _ = openGPU(t, c)
					break
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			} else if got := floats(t, out, 0, 3); !slices.Equal(got, []float32{5, -10, 150}) {
				t.Errorf("%s: got %v, want 5 -10 150", tc.name, got)
			}
		}
	}

	// A kernel that spins for a known number of cycles takes about that long, also where a cold L2 is asked for.
	if err := build(t, client, "import torch\ndef run(x, c, y, total):\n    torch.cuda._sleep(2_000_000)\n", true); err != nil {
		t.Fatal(err)
	}
	load(t, client)
	s, err := client.Measure(t.Context(), device.Plan{Warmup: 3, Iterations: 20, Trials: 2, ColdL2: true})
	if err != nil {
		t.Fatal(err)
	}
	if s.Timer == "" || !s.ColdL2 || len(s.Trials) != 2 || len(s.Trials[0]) != 20 || len(s.Trials[1]) != 20 {
		t.Fatalf("got %+v, want 2 trials of 20, cold, with the timer's name", s)
	}
	for _, d := range slices.Concat(s.Trials...) {
		if ms := d.Seconds() * 1e3; ms < 0.7 || ms > 10 { // 0.2 to 2.9 GHz
			t.Errorf("2 million cycles took %.3f ms", ms)
		}
	}
	if err := build(t, client, "def run(x, c, y, total):\n    raise ValueError('late')\n", true); err != nil {
		t.Fatal(err)
	}
	load(t, client)
	var we *worker.Error
	if _, err := client.Measure(t.Context(), device.Plan{Iterations: 1, Trials: 1}); !errors.As(err, &we) || we.Kind != worker.Call {
		t.Errorf("measuring what raises: got %v, want an error of kind %s", err, worker.Call)
	}
}
