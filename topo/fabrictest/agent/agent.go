// Package agent runs the programs of a fabric test in the pods of the test: perftest, and a collective's launcher and
// its daemons. A client with the key of the test may run any program; without it none can connect.
package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// serverName is the name in the certificate: agents are asked by address.
const serverName = "heddle-fabric-agent"

// keyLife is how long a key is valid, from a day before it is made, since clocks differ.
const keyLife = 8 * 24 * time.Hour

// NewKey returns a new certificate and its private key in PEM. Agents and their clients show each other this one.
func NewKey(now time.Time) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(keyLife), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes}), nil
}

// Config returns the TLS configuration of agents and of clients with a key: each accepts that key alone.
func Config(certificate, key []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool, ServerName: serverName,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}, nil
}

// ReadKey reads the key of a test from the files tls.crt and tls.key, as a Secret has them.
func ReadKey(dir string) (*tls.Config, error) {
	certificate, err := os.ReadFile(filepath.Join(dir, "tls.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	return Config(certificate, key)
}

// Command is a program with its arguments, and variables in addition to the agent's own.
type Command struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

const (
	// path is the path of requests, exitHeader the trailer with the outcome: succeeded, or an error.
	path       = "/run"
	exitHeader = "Heddle-Exit"
	succeeded  = "ok"
	maxRequest = 1 << 20
)

// Serve runs commands for clients with the key until ctx ends.
func Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, handler(ctx.Done()))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(tls.NewListener(l, config)); ctx.Err() == nil || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// handler runs the command of a request. The agent's end ends the program too, which is not the program's outcome.
func handler(ended <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var command Command
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&command); err != nil {
			http.Error(w, "decode the command: "+err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Trailer", exitHeader)
		w.WriteHeader(http.StatusOK)
		out := http.NewResponseController(w)
		_ = out.Flush() // The client learns that the command starts.
		outcome := succeeded
		if err := run(r.Context(), &command, flusher{w, out}); err != nil {
			outcome = err.Error()
		}
		select {
		case <-ended:
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set(exitHeader, outcome)
		}
	}
}

// flusher passes on each line of a program as it comes.
type flusher struct {
	http.ResponseWriter
	out *http.ResponseController
}

func (f flusher) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	if err == nil {
		err = f.out.Flush()
	}
	return n, err //nolint:wrapcheck // Of http.
}
