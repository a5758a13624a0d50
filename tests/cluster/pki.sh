#!/usr/bin/env bash
# Makes certificates and kubeconfigs of a cluster, with openssl; keeps existing ones.
#
#   pki.sh          for the control plane
#   pki.sh node N   for node N
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
make_run_directory
cd "$PKI"

authority() { # FILE NAME
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -x509 -new -key "$1.key" -days 3650 -subj "/CN=$2" -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature,cRLSign 2>/dev/null
}

certificate() { # FILE SUBJECT USAGE NAMES [AUTHORITY]
  local by=${5:-ca}
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  {
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=%s\n' "$3"
    if [[ -n $4 ]]; then printf 'subjectAltName=%s\n' "$4"; fi
  } >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$by.crt" -CAkey "$by.key" -set_serial "0x$(openssl rand -hex 8)" -days 3650 \
    -out "$1.crt" -extfile "$1.ext" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

kubeconfig() { # FILE CERTIFICATE SERVER
  cat >"$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$3", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: user, user: {client-certificate-data: $(base64 -w0 "$2.crt"), client-key-data: $(base64 -w0 "$2.key")}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
END
  chmod 600 "$1"
}

if [[ ${1:-} == node ]]; then
  node=$NAME-n$2
  [[ -s $node.crt ]] || certificate "$node" "/O=system:nodes/CN=system:node:$node" clientAuth ""
  kubeconfig "$RUN/$node.kubeconfig" "$node" "https://$CP_IP:6443"
  exit
fi

if [[ ! -s ca.crt ]]; then
  authority ca kubernetes-ca
  authority front-proxy-ca front-proxy-ca
  # Issuers of service account tokens are RSA keys.
  openssl genrsa -out sa.key 2048 2>/dev/null
  openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
  in_cluster=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
  certificate apiserver /CN=kube-apiserver serverAuth \
    "$in_cluster,DNS:localhost,IP:127.0.0.1,IP:$CP_IP,IP:$SERVICE_API"
  certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth ""
  certificate front-proxy /CN=front-proxy-client clientAuth "" front-proxy-ca
  certificate admin /O=system:masters/CN=admin clientAuth ""
  certificate controller-manager /CN=system:kube-controller-manager clientAuth ""
  certificate scheduler /CN=system:kube-scheduler clientAuth ""
  certificate proxy /CN=system:kube-proxy clientAuth ""
fi
kubeconfig "$RUN/controller-manager.kubeconfig" controller-manager https://127.0.0.1:6443
kubeconfig "$RUN/scheduler.kubeconfig" scheduler https://127.0.0.1:6443
kubeconfig "$RUN/proxy.kubeconfig" proxy "https://$CP_IP:6443"
kubeconfig "$ADMIN_INSIDE" admin "https://$CP_IP:6443"
kubeconfig "$ADMIN" admin "https://127.0.0.1:$API_PORT"
