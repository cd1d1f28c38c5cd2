# What people type. Each target says what it does in one line of `make help`.

TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
SHUNT  := $(TARGET)/release/shunt
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help build demo demo-deps test suites bench install-deps tidy

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the library, also for 32-bit programs if that can be, and the command
	cargo build --release --locked -p shunt-preload -p shunt-cli
	@scripts/build-32-bit

demo: demo-deps build ## Run real programs plain and accelerated, and compare (about 2 minutes after the build)
	$(SHUNT) demo

test: ## Run all tests; what cannot run here says why
	tests/run

suites: build ## Run the test suites of other projects plain and accelerated, and compare (hours; as root)
	@for suite in cpython memcached redis libuv libevent node ruby postgresql aiohttp gevent \
		tornado twisted uvloop tokio perl nginx openssh rsync ftp web mail mariadb mpi \
		varnishtest curl mosquitto messaging rabbitmq samba php erlang netty openldap \
		libwebsockets libmicrohttpd glib asio lwt go tcl smtp python-libraries python-databases \
		socat ncat rust ruby-servers zeo mercurial subversion mpi4py plack stunnel h2o \
		pgbouncer rsyslog java daemons storage git mbedtls nbd gdb emacs dns openssl \
		postgresql-tap chromium; do \
		CARGO_TARGET_DIR=$(TARGET) tests/suites/$$suite || failed="$$failed $$suite"; done; \
	[ -z "$$failed" ] || { echo "different:$$failed"; exit 1; }

bench: build ## Measure everything on this machine, into a folder in bench/runs
	$(SHUNT) bench all

install-deps: ## Install what build, demo and bench need: by apt as root, else say what is missing
	@scripts/install-deps --all

demo-deps:
	@scripts/install-deps

tidy: ## Check format, lints and the rules of the repository
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo xtask tidy
