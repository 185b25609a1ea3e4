//go:build linux

// Command probe is a container main for tests. It prints its environment, one
// line per path given as an argument and, with PROBE_API set, who the API server
// it is; then it waits for SIGTERM. Run with exec, -once ends it right away.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	run(ctx, os.Args[1:], os.Stdout)
	stop()
}

func run(ctx context.Context, args []string, out io.Writer) {
	once := len(args) > 0 && args[0] == "-once"
	if once {
		args = args[1:]
	}
	environ := os.Environ()
	slices.Sort(environ)
	for _, e := range environ {
		_, _ = fmt.Fprintln(out, "ENV", e)
	}
	for _, p := range args {
		_, _ = fmt.Fprintln(out, "STAT", p, stat(p))
		_, _ = fmt.Fprintln(out, "OPEN", p, open(p))
	}
	if os.Getenv("PROBE_API") != "" {
		answer, err := identity(ctx)
		if err != nil {
			answer = "error: " + err.Error()
		}
		_, _ = fmt.Fprintln(out, "API", answer)
	}
	if !once {
		<-ctx.Done()
		_, _ = fmt.Fprintln(out, "bye")
	}
}

func stat(p string) string {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("mode=%o rdev=%d:%d", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

func open(p string) string {
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		return "error: " + err.Error()
	}
	_ = f.Close()
	return "ok"
}

// identity asks the API server, reached the way an in-cluster client reaches it.
func identity(ctx context.Context) (string, error) {
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(dir + "ca.crt")
	if err != nil {
		return "", err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return "", errors.New("no certificate in ca.crt")
	}
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	review := []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://"+host+"/apis/authentication.k8s.io/v1/selfsubjectreviews", bytes.NewReader(review))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.Status + " " + string(body), err
}
