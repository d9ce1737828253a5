package pyworker

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/longtest"
	"fisub/internal/memfile"
	"fisub/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The rules that need no torch are tested in Python.
func TestRules(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		longtest.Missing(t, "python", err)
	}
	out, err := exec.Command(python, "-B", "-m", "unittest", "worker_test").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func command(t *testing.T) worker.Command {
	t.Helper()
	c, err := Command(t.Context(), t.TempDir())
	if err != nil {
		longtest.Missing(t, "python", err)
	}
	return c
}

const definition = `{"name":"d","op_type":"t","axes":{"n":{"type":"var"}},
"inputs":{"x":{"shape":["n"],"dtype":"float32"},"c":{"shape":null,"dtype":"int32"}},
"outputs":{"y":{"shape":["n"],"dtype":"float32"},"total":{"shape":[],"dtype":"float32"}},"reference":"def run(x, c):\n    return x, x.sum()\n"}`

// start returns a worker on the CPU that has built source, and the error of the build.
func start(t *testing.T, c worker.Command, source string, passing bool) (*worker.Client, error) {
	t.Helper()
	client := open(t, c)
	return client, build(t, client, source, passing)
}

// compilers calls Build for the workers of open.
var compilers = map[*worker.Client]func(*trace.Definition, *trace.Solution) error{}

func open(t *testing.T, c worker.Command) *worker.Client {
	t.Helper()
	client, err := worker.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	root := t.TempDir()
	compilers[client] = func(def *trace.Definition, sol *trace.Solution) error {
		return Build(t.Context(), client, root, def, sol, func(string) (*worker.Client, error) {
			compiler, err := worker.Start(t.Context(), c)
			if err == nil {
				_, err = compiler.Open(t.Context(), "emu", device.Options{CacheDir: root})
			}
			return compiler, err
		})
	}
	info, err := client.Open(t.Context(), "emu", device.Options{CacheDir: root})
	if err != nil {
		t.Fatal(err)
	}
	if !info.Emulated || info.Name == "" || info.Libs["torch"] == "" ||
		!strings.Contains(info.Toolchain, "torch "+info.Libs["torch"]) {
		t.Errorf("device: got %+v, want an emulated one with its libraries", info)
	}
	return client
}

// build replaces the solution of the worker.
func build(t *testing.T, client *worker.Client, source string, passing bool) error {
	t.Helper()
	return buildNamed(t, client, "s", source, passing)
}

func buildNamed(t *testing.T, client *worker.Client, name, source string, passing bool) error {
	t.Helper()
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	sol := &trace.Solution{Name: name, Definition: "d", Author: "a", Spec: trace.BuildSpec{Language: trace.Python,
		TargetHardware: []string{"cuda"},
		EntryPoint:     "main.py::run", DestinationPassingStyle: passing},
		Sources: []trace.SourceFile{{Path: "main.py", Content: source}}}
	if build, ok := compilers[client]; ok {
		return build(def, sol)
	}
	return client.Build(t.Context(), def, sol)
}

// load gives the worker c = 5 and x = 1, -2, 30 after 12 other bytes; out takes the outputs.
func load(t *testing.T, client *worker.Client) (out *os.File) { return loadOutputs(t, client, 2) }

// loadOutputs is load for definitions with the first n outputs.
func loadOutputs(t *testing.T, client *worker.Client, n int) (out *os.File) {
	t.Helper()
	return loadTyped(t, client, n, "float32")
}

// loadTyped is loadOutputs with a dtype for the outputs.
func loadTyped(t *testing.T, client *worker.Client, n int, dtype string) (out *os.File) {
	t.Helper()
	in := filepath.Join(t.TempDir(), "in")
	data := []byte("xxxxxxxxxxxx")
	for _, v := range []float32{1, -2, 30} {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	five := trace.Scalar{Kind: trace.IntScalar, Int: 5}
	err := client.Load(t.Context(), &worker.Tensors{
		Inputs: []worker.Value{{Tensor: &worker.FileTensor{DType: "float32", Shape: []int{3}, Path: in, Offset: 12,
			Bytes: 12}}, {Scalar: &five}},
		Outputs: []worker.Value{{Tensor: &worker.FileTensor{DType: dtype, Shape: []int{3}, Bytes: 12}},
			{Tensor: &worker.FileTensor{DType: dtype, Shape: []int{}, Offset: 256, Bytes: 4}}}[:n],
	})
	if err != nil {
		t.Fatal(err)
	}
	return outputs(t)
}

// outputs makes a file for outputs.
func outputs(t *testing.T) *os.File {
	t.Helper()
	f, err := memfile.New("outputs", 512)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func floats(t *testing.T, file *os.File, offset, n int) []float32 {
	t.Helper()
	data := make([]byte, offset+4*n)
	if _, err := file.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	var values []float32
	for i := range n {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[offset+4*i:])))
	}
	return values
}

// Before a call, outputs of integers do not contain -1, which may be the expected result.
func TestIntegerPoison(t *testing.T) {
	client, err := start(t, command(t), "def run(x, c, y, total):\n    pass\n", true)
	if err != nil {
		t.Fatal(err)
	}
	out := loadTyped(t, client, 2, "int32")
	if _, err := client.Run(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := math.Float32bits(floats(t, out, 0, 3)[2]); got != 0x7f7f7f7f {
		t.Errorf("got %#x, want 0x7f7f7f7f", got)
	}
}

func TestDestinationPassing(t *testing.T) {
	client, err := start(t, command(t),
		"def run(x, c, y, total):\n    assert type(c) is int\n    y[:2] = (x * c)[:2]\n    total.fill_(x.sum())\n    "+
			"print('hello')\n", true)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out := load(t, client)
		written, err := client.Run(t.Context(), out)
		if err != nil || written != nil {
			t.Fatalf("got outputs %v, error %v; want neither", written, err)
		}
		got := floats(t, out, 0, 3)
		if got[0] != 5 || got[1] != -10 || got[2] == got[2] {
			t.Errorf("got %v, want 5, -10 and the poison's NaN", got)
		}
		if total := floats(t, out, 256, 1)[0]; total != 29 {
			t.Errorf("got total %v, want 29", total)
		}
		if log := client.TakeLog(); log != "hello\n" {
			t.Errorf("log: got %q, want %q", log, "hello\n")
		}
	}
	var we *worker.Error
	if _, _, err := client.Measure(t.Context(), worker.JudgedPlan{Plan: device.Plan{Trials: 1, Iterations: 1}}); !errors.As(err, &we) ||
		we.Kind != worker.Timing {
		t.Errorf("measure: got %v, want an error of kind %s", err, worker.Timing)
	}
}

func TestValueReturning(t *testing.T) {
	client := open(t, command(t))
	for _, tc := range []struct {
		name, body string
		want       []worker.FileTensor // nil if the call fails
		text       string
	}{
		{"as declared", "x * c, x.sum()", []worker.FileTensor{{DType: "float32", Shape: []int{3}, Bytes: 12},
			{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}, ""},
		{"a list with a number", "[x * c, 29]", []worker.FileTensor{{DType: "float32", Shape: []int{3}, Bytes: 12},
			{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}, ""},
		{"sequences of numbers", "[5, -10, 150], 29", []worker.FileTensor{{DType: "float32", Shape: []int{3}, Bytes: 12},
			{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}, ""},
		{"transposed and of other dtypes", "torch.stack([x, x]).t().double() * c, x.sum().bfloat16()",
			[]worker.FileTensor{{DType: "float64", Shape: []int{3, 2}, Bytes: 48},
				{DType: "bfloat16", Shape: []int{}, Offset: 256, Bytes: 2}}, ""},
		{"transposed", "torch.stack([x * c, x]).t(), x.sum()",
			[]worker.FileTensor{{DType: "float32", Shape: []int{3, 2}, Bytes: 24},
				{DType: "float32", Shape: []int{}, Offset: 256, Bytes: 4}}, ""},
		{"larger than the file", "x.repeat(100), x.sum()",
			[]worker.FileTensor{{DType: "float32", Shape: []int{300}, Bytes: 1200},
				{DType: "float32", Shape: []int{}, Offset: 1280, Bytes: 4}}, ""},
		{"too many", "x, x, x", nil, "ValueError: Tuple/list has 3 elements but 2 outputs expected"},
		{"too few", "x", nil, "ValueError: Single value returned but 2 outputs expected"},
		{"no tensor", "'x', x", nil, "TypeError: output 'y' is of type str, not a tensor or numbers"},
	} {
		if err := build(t, client, "import torch\ndef run(x, c):\n    return "+tc.body+"\n", false); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		out := load(t, client)
		got, err := client.Run(t.Context(), out)
		if tc.want == nil {
			var we *worker.Error
			if !errors.As(err, &we) || we.Kind != worker.Call || we.Text != tc.text {
				t.Errorf("%s: got %v, want %q", tc.name, err, tc.text)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %v, %v; want %v", tc.name, got, err, tc.want)
		}
		if got := floats(t, out, 0, 3); (tc.name == "as declared" || tc.name == "sequences of numbers") &&
			!slices.Equal(got, []float32{5, -10, 150}) {
			t.Errorf("%s: got %v, want 5 -10 150", tc.name, got)
		} else if tc.name == "transposed" && !slices.Equal(got, []float32{5, 1, -10}) {
			t.Errorf("%s: got %v, want 5 1 -10", tc.name, got)
		}
	}
}

// Damage that a solution does to its process is an error with a log, or ends the process. After an error the next
// call works normally.
func TestMisbehaviour(t *testing.T) {
	c := command(t)
	client := open(t, c)
	const good = "    y.copy_(x * c)\n    total.fill_(x.sum())\n"
	for _, tc := range []struct {
		name, body string
		kind       worker.Kind // "" if the call succeeds
		text       string
		died       string
		log        string
	}{
		{"raises", "    print('before')\n    raise ValueError('odd input')\n", worker.Call, "ValueError: odd input", "",
			"before\n"},
		{"exits", "    import sys\n    sys.exit(3)\n", worker.Call, "SystemExit: 3", "", ""},
		{"interrupts", "    raise KeyboardInterrupt\n", worker.Call, "KeyboardInterrupt", "", ""},
		{"interrupts later", "    import _thread\n    _thread.interrupt_main()\n" + good, "", "", "", ""},
		{"ends the process", "    import os\n    print('last words', flush=True)\n    os._exit(7)\n", "", "", "exit status 7",
			"last words\n"},
		{"crashes", "    import ctypes\n    ctypes.string_at(0)\n", "", "", "signal: segmentation fault", ""},
		{"recurses", "    return run(x, c, y, total)\n", worker.Call, "RecursionError: maximum recursion depth exceeded", "",
			""},
		{"closes descriptors", "    import os\n    print('still here')\n    os.closerange(0, 256)\n" + good, "", "", "",
			"still here\n"},
		{"forks", "    import os\n    if os.fork() == 0:\n        raise SystemExit\n" + good, "", "", "", ""},
		{"forks and both return", "    import os\n    os.fork()\n" + good, "", "", "", ""},
		{"replaces stdout", "    import sys\n    sys.stdout = None\n" + good, "", "", "", ""},
		{"leaves a thread", "    import threading, time\n    threading.Thread(target=time.sleep, args=(3600,)).start()\n" +
			good, "", "", "", ""},
		{"changes defaults",
			"    import torch\n    torch.set_default_dtype(torch.float64)\n    torch.set_default_device('meta')\n" + good, "",
			"", "", ""},
	} {
		if !client.Alive() {
			client = open(t, c)
		}
		if err := build(t, client, "def run(x, c, y, total):\n"+tc.body, true); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		for range 2 {
			out := load(t, client)
			_, err := client.Run(t.Context(), out)
			var we *worker.Error
			var died *worker.Died
			switch {
			case tc.died != "":
				if !errors.As(err, &died) || !strings.HasPrefix(died.Reason, tc.died) {
					t.Errorf("%s: got %v, want the end %q", tc.name, err, tc.died)
				}
			case tc.kind != "":
				if !errors.As(err, &we) || we.Kind != tc.kind || !strings.HasPrefix(we.Text, tc.text) {
					t.Errorf("%s: got %v, want %s error %q", tc.name, err, tc.kind, tc.text)
				}
			case err != nil:
				t.Errorf("%s: %v", tc.name, err)
			default:
				if got := floats(t, out, 0, 3); !slices.Equal(got, []float32{5, -10, 150}) {
					t.Errorf("%s: got %v, want 5 -10 150", tc.name, got)
				}
			}
			if log := client.TakeLog(); log != tc.log {
				t.Errorf("%s: got log %q, want %q", tc.name, log, tc.log)
			}
			if tc.died != "" {
				break
			}
		}
	}
}

func TestTimeLimit(t *testing.T) {
	client, err := start(t, command(t), "def run(x, c, y, total):\n    while True: pass\n", true)
	if err != nil {
		t.Fatal(err)
	}
	out := load(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.Run(ctx, out); !errors.Is(err, context.DeadlineExceeded) || client.Alive() {
		t.Errorf("got %v, alive %v; want %v and a dead worker", err, client.Alive(), context.DeadlineExceeded)
	}
}

func TestBuildErrors(t *testing.T) {
	client := open(t, command(t))
	for _, tc := range []struct{ name, source, text string }{
		{"syntax", "def run(:\n", "Failed importing module 'fib_python_s_"},
		{"missing", "x = 1\n", "Entry symbol 'run' not found in module 'fib_python_s_"},
		{"signature", "def run(x):\n    pass\n",
			"Destination-passing style callable: expected 4 positional parameters, but signature '(x)' is incompatible: too " +
				"many positional arguments"},
	} {
		err := build(t, client, tc.source, true)
		var we *worker.Error
		if !errors.As(err, &we) || we.Kind != worker.Build || !strings.HasPrefix(we.Text, tc.text) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.text)
		}
	}
}

// Using a GPU feature or a package of the contest's image that is missing here gives no verdict; the solution's own
// mistakes do.
func TestLacking(t *testing.T) {
	client := open(t, command(t))
	const head = "import torch\ndef run(x, c, y, total):\n    y.copy_(x * c)\n"
	for _, tc := range []struct {
		name, source string
		kind         worker.Kind
		text         []string
	}{
		{"its own mistake", head + "    raise ValueError('odd')\n", worker.Call, []string{"ValueError: odd"}},
		{"an assertion", head + "    assert x.is_cuda and x.to('cuda') is x and not x.cpu().is_cuda\n    torch.cuda.Stream()\n" +
			"    assert not x.is_cuda\n", worker.Call, []string{"AssertionError"}},
		{"a graph", head + "    def deeper():\n        torch.cuda.CUDAGraph()\n    deeper()\n", worker.Lacking,
			[]string{"does not support torch.cuda.CUDAGraph"}},
		{"what torch has for a GPU only", head + "    print(1)\n" +
			"    torch._C._cuda_setDevice(0)\n", worker.Lacking, []string{"it needs a GPU"}},
		{"a library", "import ctypes\nctypes.CDLL('libnvrtc.so')\n" + head, worker.Lacking,
			[]string{"libnvrtc.so", "(main.py:2)"}},
		{"a package of the image", "import deep_gemm.part\n" + head + "    deep_gemm.part.f(x)\n", worker.Lacking,
			[]string{"has no deep_gemm, which the contest's image has (main.py:1)"}},
		{"and all that it has", "from cudnn import *\n" + head, worker.Lacking,
			[]string{"has no cudnn, which the contest's image has (main.py:1): pip install nvidia-cudnn-frontend"}},
		{"and its numbers", "import cudnn\n" + head + "    bool(cudnn.FLAG)\n", worker.Lacking, []string{"has no cudnn"}},
		{"a mistake next to it", "import cudnn\n" + head + "    raise ValueError('odd')\n", worker.Lacking,
			[]string{"has no cudnn", "without it: ValueError: odd"}},
		{"nvcc in a message", head + "    raise ValueError('nvcc said no')\n", worker.Call, []string{"ValueError: nvcc said no"}},
		{"no nvcc", head + "    raise FileNotFoundError(2, 'No such file or directory', '/usr/bin/nvcc')\n", worker.Lacking,
			[]string{"it needs a GPU"}},
		{"a lost header", head +
			"    raise RuntimeError('nvcc\\na.cu:3:10: fatal error: include/utils.h: No such file or directory')\n", worker.Call,
			[]string{"include/utils.h"}},
		{"a header of CUTLASS", head +
			"    raise RuntimeError('nvcc\\na.cu:3:10: fatal error: cutlass/gemm.h: No such file or directory')\n",
			worker.Lacking, []string{"the virtual GPU's build has no header cutlass/gemm.h"}},
		{"a header of CUTLASS next to its own mistake", head +
			"    raise RuntimeError('a.cu:3:10: fatal error: cutlass/gemm.h: No such file or " +
			"directory\\na.cu(7): error: expected a \";\"')\n", worker.Call, []string{"expected a"}},
		{"a method of a stream", head + "    torch.cuda.Stream().cuda_graph_of\n", worker.Call, []string{"AttributeError"}},
		{"a property of the device", head + "    torch.cuda.get_device_properties(0).pci_bus_id\n", worker.Lacking,
			[]string{"does not support Properties.pci_bus_id of torch.cuda"}},
		{"a property that no device has", head + "    torch.cuda.get_device_properties(0).shared_mem_per_block\n",
			worker.Call,
			[]string{"AttributeError", "shared_mem_per_block"}},
		{"a stream in another form", head + "    torch.cuda.Stream().wait_event(1, 2)\n", worker.Lacking,
			[]string{"does not support Stream of torch.cuda"}},
		{"a package", "import deeper_gemm\n" + head, worker.Build, []string{"No module named 'deeper_gemm'"}},
		{"a message of the builder's", "gpu = 1\ndef cuda(x): pass\n", worker.Build, []string{"Entry symbol 'run' not found"}},
	} {
		err := build(t, client, tc.source, true)
		if err == nil {
			_, err = client.Run(t.Context(), load(t, client))
		}
		var we *worker.Error
		if !errors.As(err, &we) || we.Kind != tc.kind || !slices.Equal(tc.text, kept(tc.text, we.Text)) {
			t.Errorf("%s: got %#v, want %s and %q", tc.name, err, tc.kind, tc.text)
		}
	}
}

// An import's error contains the solution's name, which must not be taken for a missing feature.
func TestLackingName(t *testing.T) {
	err := buildNamed(t, open(t, command(t)), "with_cuda_graphs", "import deeper_gemm\ndef run(x, c, y, total):\n    pass\n", true)
	var we *worker.Error
	if !errors.As(err, &we) || we.Kind != worker.Build || !strings.Contains(we.Text, "No module named 'deeper_gemm'") {
		t.Errorf("got %#v, want a build error", err)
	}
}

// A missing package that is not really needed, and features of torch.cuda's stand-ins, do not stop a solution.
func TestStandIns(t *testing.T) {
	client := open(t, command(t))
	const head = "import torch\ndef run(x, c, y, total):\n    y.copy_(x * c)\n    total.fill_(x.sum())\n"
	for name, source := range map[string]string{
		"an unused package": "import deep_gemm.part as d\nfrom cudnn import graph\nimport cutlass\n" +
			"def f(a: cutlass.Int32 | None, b: cutlass.Constexpr[int]): return d.call(a)\n" + head,
		"an optional one": "try:\n    import cudnn\nexcept ImportError:\n    cudnn = None\n" + head + "    assert cudnn is None\n",
		"record_stream":   head + "    x.record_stream(torch.cuda.current_stream())\n",
		"priorities":      head + "    assert torch.cuda.Stream.priority_range() == (0, -5)\n",
		"uuid":            head + "    assert len(str(torch.cuda.get_device_properties(0).uuid)) == 36\n",
		"an allocation":   head + "    p = torch.cuda.caching_allocator_alloc(64)\n    assert p % 64 == 0\n    torch.cuda.caching_allocator_delete(p)\n",
		"DLPack":          head + "    assert x.__dlpack_device__() == (2, 0) and x.cpu().__dlpack_device__() == (1, 0)\n",
	} {
		tc := pyCall{name: name, source: source, y: []float32{5, -10, 150}}
		tc.run(t, client, "")
	}
}

// A traceback names files by the author's paths, without fisub's frames.
func TestTraceback(t *testing.T) {
	client := open(t, command(t))
	source := "import torch, warnings\ndef deeper(x):\n    raise ValueError('odd')\ndef run(x, c, y, total):\n    try:\n        x.item()\n" +
		"    except Exception:\n        deeper(x)\nwarnings.warn('old')\n"
	if err := build(t, client, source, true); err != nil {
		t.Fatal(err)
	}
	_, err := client.Run(t.Context(), load(t, client))
	var we *worker.Error
	if !errors.As(err, &we) {
		t.Fatal(err)
	}
	for _, want := range []string{"  File \"main.py\", line 6, in run\n    x.item()\n", "  File \"main.py\", line 3, in deeper\n    raise ValueError('odd')\n"} {
		if !strings.Contains(we.Log, want) {
			t.Errorf("got %q, want %q", we.Log, want)
		}
	}
	for _, ours := range []string{"fisub_worker", "/python/"} {
		if strings.Contains(we.Log, ours) {
			t.Errorf("got %q, which names %s", we.Log, ours)
		}
	}
	if got, want := client.TakeLog(), "main.py:9: UserWarning: old\n  warnings.warn('old')\n"; got != want {
		t.Errorf("a warning: got %q, want %q", got, want)
	}
	err = build(t, client, "import torch\ntorch.cuda.CUDAGraph()\n", true)
	if want := "\nfisub_vgpu.Lacking: the virtual GPU does not support torch.cuda.CUDAGraph\n"; !errors.As(err, &we) ||
		!strings.HasSuffix(we.Log, want) {
		t.Errorf("got %v, %q, want %q", err, we.Log, want)
	}
	if err := build(t, client, "x = 8 8\n", true); !errors.As(err, &we) ||
		!strings.HasPrefix(we.Log, "  File \"main.py\", line 1\n    x = 8 8\n") {
		t.Errorf("a syntax error: got %v, %q, want the place without importlib's frames", err, we.Log)
	}
}

// TestWithoutNumPy: torch's warning about a missing numpy is not in the log, next to a solution's own messages.
func TestWithoutNumPy(t *testing.T) {
	c, dir := command(t), t.TempDir()
	hidden := []byte("raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n")
	if err := os.WriteFile(filepath.Join(dir, "numpy.py"), hidden, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "PYTHONPATH="+dir)
	client := open(t, c)
	source := "import torch, warnings\ndef run(x, c, y, total):\n    pass\nwarnings.warn('own')\ntorch.tensor([1])\n"
	if err := build(t, client, source, true); err != nil {
		t.Fatal(err)
	}
	if got, want := client.TakeLog(), "main.py:4: UserWarning: own\n  warnings.warn('own')\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The worker runs its own modules, whatever the environment contains. Solutions cannot import them by their short names,
// and no byte code is left next to them.
func TestOwnModules(t *testing.T) {
	c, other := command(t), t.TempDir()
	for _, name := range []string{"fisub_worker.py", "errors.py"} {
		if err := os.WriteFile(filepath.Join(other, name), []byte("found = 1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, safe := range []string{"", "1"} {
		c.Env = []string{"PYTHONPATH=" + other, "PYTHONSAFEPATH=" + safe, "PYTHONDONTWRITEBYTECODE="}
		_, err := start(t, c, "import errors, importlib.util as i\nassert errors.found\n"+
			"assert not any(i.find_spec(name) for name in ('server', 'solution', 'vgpu'))\ndef run(*args): pass\n", true)
		if err != nil {
			t.Errorf("PYTHONSAFEPATH=%s: %v", safe, err)
		}
	}
	err := filepath.WalkDir(filepath.Dir(c.Args[2]), func(name string, _ fs.DirEntry, err error) error {
		if filepath.Base(name) == "__pycache__" {
			t.Errorf("got %s", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// kept returns the parts that text contains.
func kept(parts []string, text string) (in []string) {
	for _, part := range parts {
		if strings.Contains(text, part) {
			in = append(in, part)
		}
	}
	return in
}

// C++ with the torch binding is built by torch's own builder.
func TestTorchBinding(t *testing.T) {
	longtest.CI(t, "compiles against torch's headers")
	client := open(t, command(t))
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	sol := func(entry, source string) *trace.Solution {
		return &trace.Solution{Name: "s", Definition: "d", Author: "a",
			Spec: trace.BuildSpec{Language: trace.CPP, Binding: "torch", TargetHardware: []string{"cpu"},
				EntryPoint: entry, DestinationPassingStyle: true},
			Sources: []trace.SourceFile{{Path: strings.Split(entry, "::")[0], Content: source}}}
	}
	var we *worker.Error
	build := compilers[client]
	err = build(def, sol("main.txt::run", "x"))
	if !errors.As(err, &we) || we.Kind != worker.Build || !strings.HasSuffix(we.Text, "got .txt.") {
		t.Errorf("entry file: got %v, want that its type is not recognized", err)
	}
	err = build(def, sol("main.cpp::run", "#error not today\n"))
	if errors.As(err, &we) && we.Code == "no-ninja" {
		longtest.Missing(t, "python", err)
	}
	if !errors.As(err, &we) || we.Kind != worker.Build ||
		!strings.HasPrefix(we.Text, "Torch build failed for solution 's': ") || !strings.Contains(we.Log, "not today") {
		t.Errorf("broken source: got %v, want a build error with the compiler's log", err)
	}
	good := sol("main.cpp::run", `#include <torch/extension.h>
void run(torch::Tensor x, int64_t c, torch::Tensor y, torch::Tensor total) { y.copy_(x * c); total.copy_(x.sum()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
`)
	if err := build(def, good); err != nil {
		t.Fatal(err)
	}
	out := load(t, client)
	if _, err := client.Run(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := floats(t, out, 0, 3); !slices.Equal(got, []float32{5, -10, 150}) {
		t.Errorf("got %v, want 5 -10 150", got)
	}
	good.Spec.EntryPoint = "main.cpp::other"
	err = build(def, good)
	if !errors.As(err, &we) || we.Kind != worker.Build ||
		we.Text != "Exported symbol 'other' not found in built extension" {
		t.Errorf("symbol: got %v, want that it is not found", err)
	}
}

func TestInputOutsideItsFile(t *testing.T) {
	client, err := start(t, command(t), "def run(x, c, y, total):\n    pass\n", true)
	if err != nil {
		t.Fatal(err)
	}
	err = client.Load(t.Context(), &worker.Tensors{
		Inputs: []worker.Value{{Tensor: &worker.FileTensor{DType: "float32", Shape: []int{3},
			Path: filepath.Join("testdata", "fake_gpu.py"), Offset: 1 << 40, Bytes: 12}}}})
	var we *worker.Error
	if !errors.As(err, &we) || we.Kind != worker.Machine || !strings.Contains(we.Text, "are outside the file of") {
		t.Errorf("got %v, want an error about the file's size", err)
	}
}

// Without a Python, or without torch in it, the error says so and has the code for its remedy.
func TestNoPython(t *testing.T) {
	dir := t.TempDir()
	without := filepath.Join(dir, "python3")
	if err := os.WriteFile(without, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, path, named, code, text string }{
		{"none", filepath.Join(dir, "empty"), "", "no-python", "python: neither python3 nor python is on PATH"},
		{"none by that name", dir, filepath.Join(dir, "absent"), "no-python", "FISUB_PYTHON: no program " + filepath.Join(dir,
			"absent")},
		{"without torch", dir, "", "no-torch", without + " is not Python 3.9 or later with torch"},
		{"named without torch", "", without, "no-torch", without + " is not Python 3.9 or later with torch"},
	} {
		t.Setenv("PATH", tc.path)
		t.Setenv("FISUB_PYTHON", tc.named)
		_, err := Command(t.Context(), dir)
		var we *worker.Error
		if !errors.As(err, &we) || we.Kind != worker.Machine || we.Code != tc.code || !strings.HasSuffix(we.Text, tc.text) {
			t.Errorf("%s: got %v, want %q with code %s", tc.name, err, tc.text, tc.code)
		}
	}
}

func TestRuns(t *testing.T) {
	for _, tc := range []struct {
		language trace.Language
		binding  string
		want     bool
	}{{trace.CUDA, "", false}, {trace.CUDA, "tvm-ffi", false}, {trace.CPP, "torch", true}, {trace.CUDA, "torch", true},
		{trace.Triton, "", true}, {trace.Python, "", true}, {trace.TileLang, "", true}} {
		spec := trace.BuildSpec{Language: tc.language, Binding: tc.binding, DestinationPassingStyle: true}
		if got := Runs(&spec); got != tc.want {
			t.Errorf("%s with binding %q: got %v, want %v", tc.language, tc.binding, got, tc.want)
		}
		if spec.DestinationPassingStyle = false; !Runs(&spec) {
			t.Errorf("%s with binding %q that returns its outputs: got false", tc.language, tc.binding)
		}
	}
}

// A torch binding is compiled in Python, whatever its sources contain.
func TestCompiles(t *testing.T) {
	for _, tc := range []struct {
		language trace.Language
		text     string
		want     bool
	}{
		{trace.CUDA, "#include <torch/extension.h>", true}, {trace.CPP, "int x;", true}, {trace.Python, "import torch", false},
		{trace.Triton, "from torch.utils.cpp_extension import load", true}, {trace.Python, "import cutlass.cute as cute", true},
	} {
		sol := &trace.Solution{Spec: trace.BuildSpec{Language: tc.language, Binding: "torch"},
			Sources: []trace.SourceFile{{Path: "f", Content: tc.text}}}
		if got := Compiles(sol); got != tc.want {
			t.Errorf("%s %q: got %t, want %t", tc.language, tc.text, got, tc.want)
		}
	}
}
