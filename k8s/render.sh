#!/usr/bin/env bash
# Prints k8s/sluice.yaml for `kubectl apply -f`: the chart without dashboards and without objects that only Helm uses.
#
#   k8s/render.sh > k8s/sluice.yaml
#
# HELM: the Helm to use instead of the one in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

cat <<'HEAD'
# Sluice's operator, as `helm template` makes it from helm/sluice, without dashboards (k8s/render.sh;
# a test compares).
#
#   kubectl apply --server-side -f k8s/sluice.yaml
#
# The images are localhost/sluice-*: change them, or load them on every node (docs/kubernetes.md).
---
apiVersion: v1
kind: Namespace
metadata:
  name: sluice-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
HEAD
"${HELM:-helm}" template sluice helm/sluice --namespace sluice-system --skip-tests --kube-version 1.34.0 \
  --set crds.keep=false,monitoring.dashboards.enabled=false
