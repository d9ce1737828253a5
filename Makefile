# make local   build fisub and run this repository's submission: 20 workloads, on the GPU or emulated
# make test    everything that proves fisub right: tests, race detector, vet, staticcheck, an emulated run
# Both install what is missing by themselves and say what they install.

SHELL := /bin/bash
.PHONY: build local test bench clean

build:
	@scripts/setup
	@scripts/build

local: build
	dist/fisub local

test:
	@scripts/setup --test
	@scripts/test

bench: build
	@. scripts/env && go run ./scripts/bench && go test -p 1 -run '^$$' -bench . -benchtime 3x ./pack ./remote/... ./internal/app

clean:
	rm -rf dist
