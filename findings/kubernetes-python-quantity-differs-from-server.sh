#!/usr/bin/env bash
# kubernetes 37.0.2 (Python): parse_quantity() accepts quantities that no API server accepts, and rounds none.
#
# It takes whatever Python's Decimal takes before the suffix: NaN, Infinity, underscores, spaces, an exponent together with
# a suffix; and K for 1,000. Kubernetes (apimachinery's ParseQuantity) refuses all of these. Kubernetes rounds what is
# finer than a nano up; the Python function keeps it. A tool that checks a manifest with it, or adds up requests, disagrees
# with the cluster.
#
# Seen (kubernetes 37.0.2, apimachinery 0.26.15):
#   quantity   Python     Kubernetes          quantity   Python    Kubernetes
#   1K         1000       refused             1 (space)  1         refused
#   NaN        NaN        refused             Infinity   Infinity  refused
#   1e3Mi      1048576E+3 refused             1_000      1000      refused
#   0.1n       1E-10      1n                  1k         1000      1k
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
mkdir "$work/go"
cat >"$work/go/go.mod" <<'END'
module quantities
go 1.19
require k8s.io/apimachinery v0.26.15
END
cat >"$work/go/main.go" <<'END'
package main

import (
	"bufio"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		quantity, err := resource.ParseQuantity(lines.Text())
		if err != nil {
			fmt.Println("refused")
		} else {
			fmt.Println(quantity.String())
		}
	}
}
END
(cd "$work/go" && export GOMODCACHE="$work/mod" GOFLAGS='-mod=mod -modcacherw' && go mod tidy >/dev/null 2>&1 && go build -o quantities .)
printf '%s\n' 1K '1 ' NaN Infinity 1e3Mi 1_000 0.1n 1k >"$work/quantities.txt"
"$work/go/quantities" <"$work/quantities.txt" >"$work/server.txt"
QUANTITIES=$work run_python kubernetes==37.0.2 <<'END'
import os
import pathlib

from kubernetes.utils import parse_quantity

directory = pathlib.Path(os.environ['QUANTITIES'])
quantities = (directory / 'quantities.txt').read_text().splitlines()
server = (directory / 'server.txt').read_text().splitlines()
for quantity, theirs in zip(quantities, server, strict=True):
    print(f'{quantity!r:12} Python {str(parse_quantity(quantity)):12} Kubernetes {theirs}')
assert server == ['refused'] * 6 + ['1n', '1k'], server
assert str(parse_quantity('0.1n')) == '1E-10'
END
