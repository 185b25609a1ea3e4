//go:build e2e && linux

package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// startKueue runs Kueue's own controller against the cluster. Its webhooks only add
// what the objects of these tests have.
func (b *bed) startKueue(t *testing.T) {
	t.Helper()
	program, module := b.program(t, "test/cluster/build/workloads", "sigs.k8s.io/kueue/cmd/kueue")
	b.kubectl(t, "apply", "--server-side", "-f", filepath.Join(module, "config/components/crd/bases"))
	b.kubectl(t, "wait", "crd", "--all", "--for=condition=Established", "--timeout=3m")
	b.kubectl(t, "create", "namespace", "kueue-system")
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "namespace", "kueue-system", "--wait=true") })
	certs := t.TempDir()
	pair(t, certs)
	config := filepath.Join(certs, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:19441"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: 19443, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 200, burst: 300}
integrations: {frameworks: [batch/job]}
`, certs), 0o600); err != nil {
		t.Fatal(err)
	}
	// It reads the certificate of its metrics in /etc whatever its configuration has.
	const script = `mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics && cp -r "$1" /etc/kueue/metrics/certs &&
exec "$2" --config "$3" --feature-gates=VisibilityOnDemand=false --zap-log-level=2`
	b.runWorkload(t, "unshare", "--mount", "sh", "-c", script, "sh", certs, program, config)
}

// pair writes a certificate and its key.
func pair(t *testing.T, dir string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	server.Close()
	certificate := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// applied applies objects.
func (b *bed) applied(t *testing.T, text string) {
	t.Helper()
	if err := b.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}
