# make local   build fisub and run this repository's submission: 20 workloads, on the GPU or emulated
# make quick   the tests of the packages without cgo and network, in seconds
# make check   what to run between edits: format, vet, staticcheck, and the tests that are quick
# make test    proves fisub right: tests, an emulated run
# make ci      everything: all tests, race detector, vet, staticcheck, release and wheel, other hosts, browsers, shells
# make fuzz    each fuzz target for TIME=1m, on files in memory
# make lint    golangci-lint with the rules of .golangci.yml, built from its source (about two minutes)
# All install what is missing by themselves and say what they install.

SHELL := /bin/bash
.PHONY: build local quick check test ci fuzz lint bench clean

build:
	@scripts/setup
	@scripts/build

local: build
	@[ ! -e /dev/nvidiactl ] || dist/fisub toolchain install
	dist/fisub local

quick:
	@scripts/setup
	@scripts/quick

check:
	@scripts/setup
	@scripts/check

test:
	@scripts/setup --test || [ $$? = 75 ]
	@scripts/test

ci:
	@scripts/setup --ci || [ $$? = 75 ]
	@scripts/ci

fuzz:
	@scripts/setup
	@scripts/fuzz

lint:
	@scripts/setup
	@. scripts/env && go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run --build-tags cuda ./...

bench: build
	@. scripts/env && go test -p 1 -run '^$$' -bench . -benchtime 3x ./pack ./remote/... ./report ./device/vgpu ./bench ./app

clean:
	rm -rf dist
