package pyworker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/internal/longtest"
	"fisub/internal/trace"
)

// CUDA in an extension of torch runs on the virtual GPU. Its C++ code sees CUDA tensors, and lets torch create and
// change some.
func TestExtension(t *testing.T) {
	longtest.CI(t, "compiles against torch's headers")
	const source = `#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void kernel(const float* x, float* y, int n, float c) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * c; }
torch::Tensor scaled(torch::Tensor x, int64_t n, double c) {
  TORCH_CHECK(x.is_cuda() && x.device() == torch::Device(torch::kCUDA, 0), "x is not on the GPU");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::zeros_like(x);
  auto half = torch::empty({3}, x.options());
  half.copy_(x.to(torch::kFloat64) / 2);
  kernel<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(half.data_ptr<float>(), y.data_ptr<float>(), n, c);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  TORCH_CHECK(y.cpu().device().is_cpu() && y[0].item<float>() == x.select(0, 0).item<float>() * c / 2, "not equal");
  return y.mul_(2);
}
`
	const python = "import torch\nfrom torch.utils.cpp_extension import load_inline\nSOURCE = '''" + source + "'''\n" +
		"DECLARATION = 'torch::Tensor scaled(torch::Tensor x, int64_t n, double c);'\n" +
		"m = load_inline('fisub_test', DECLARATION, SOURCE, functions=['scaled'])\n" +
		"calls = iter((lambda x, c: m.scaled(x, 3, c), lambda x, c: m.scaled(x.cpu(), 3, c), lambda x, c: m.scaled(x, 4, c)))\n" +
		"def run(x, c, y, total):\n    total.fill_(x.sum())\n    scaled = next(calls)(x, c)\n    assert scaled.is_cuda\n    y.copy_(scaled)\n"
	client := open(t, compilerCommand(t, "torch"))
	for _, tc := range []pyCall{ // one build for all: it takes minutes
		{"inline", python, "", "", []float32{5, -10, 150}},
		{"on the CPU", "", worker.Call, "x is not on the GPU", nil},
		{"past the end", "", worker.Call, "past the end of an allocation of the submission (", nil},
	} {
		tc.run(t, client, "")
	}
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	// nvcc takes minutes for torch's headers: here only the C++ compiler reads them.
	bound := &trace.Solution{Name: "s", Definition: "d", Author: "a",
		Spec: trace.BuildSpec{Language: trace.CUDA, Binding: "torch", TargetHardware: []string{"cuda"}, EntryPoint: "main.cpp::run",
			DestinationPassingStyle: true},
		Sources: []trace.SourceFile{
			{Path: "kernel.cu", Content: `__global__ void kernel(const float* x, float* y, float c) { y[threadIdx.x] = x[threadIdx.x] * c; }
void scale(const float* x, float* y, float c, cudaStream_t stream) { kernel<<<1, 3, 0, stream>>>(x, y, c); }
`},
			{Path: "main.cpp", Content: `#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
void scale(const float* x, float* y, float c, cudaStream_t stream);
void run(torch::Tensor x, int64_t c, torch::Tensor y, torch::Tensor total) {
  scale(x.data_ptr<float>(), y.data_ptr<float>(), c, c10::cuda::getCurrentCUDAStream());
  total.copy_(x.sum() * c);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
`}}}
	if err := compilers[client](def, bound); err != nil {
		t.Fatal(err)
	}
	out := load(t, client)
	if _, err := client.Run(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := floats(t, out, 0, 3); !slices.Equal(got, []float32{5, -10, 150}) {
		t.Errorf("got %v, want 5 -10 150", got)
	}
	bound.Sources[0].Content = "#error not today\n"
	err = compilers[client](def, bound)
	var we *worker.Error
	if !errors.As(err, &we) || we.Kind != worker.Build || !strings.Contains(we.Log, "kernel.cu") {
		t.Errorf("got %v, want the error in kernel.cu", err)
	}
}
