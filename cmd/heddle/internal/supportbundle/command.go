// Package supportbundle is `heddle support-bundle`: one file with what people ask for
// first when something is wrong on a node. It runs the other commands and asks the
// API server, and changes nothing.
package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/doctor"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/inspect"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
)

// NewCommand makes `heddle support-bundle` of a version of heddle.
func NewCommand(version string) *cobra.Command {
	c := &cobra.Command{
		Use: "support-bundle", Short: "Write what a bug report needs into one file", Args: cobra.NoArgs,
		Long: `Write what a bug report needs into one file, a tar.gz: the machine, what doctor
finds, and with --node what the API server has about the Node: its
configuration, its report, who has which device, logs of heddle's pods there,
and Events of the Node, of heddle, and of the device plugin about pods, which
show the names of these pods.

Secrets are not read, and what looks like a credential is replaced; read the
file before you send it. It has 32 MB at most. What could not be read is listed
in contents.json, and is not an error. Unpacked, heddle inspect
--machine machine.json --config config shows the machine.`,
		Example: `  heddle support-bundle --node gpu-1                 from anywhere
  heddle support-bundle --machine host --node gpu-1  on the node
  heddle support-bundle                              on the node, no kubeconfig`,
	}
	var machine source.Flags
	var at cluster.Flags
	machine.Register(c.Flags())
	at.Register(c)
	node := at.NodeFlag(c, "", "`name` of a Node to ask the API server about")
	path := c.Flags().String("file", "", "`file` to write; default heddle-NODE.tar.gz, or heddle.tar.gz")
	c.RunE = func(c *cobra.Command, _ []string) error {
		name := *path
		switch {
		case name == "" && *node != "":
			name = "heddle-" + *node + ".tar.gz"
		case name == "":
			name = "heddle.tar.gz"
		}
		g := &gathering{files: files{content: map[string][]byte{}}, command: c, version: version}
		g.namespace = at.Given(cluster.System)
		made := time.Now()
		g.all(&at, *node, made)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if err = errors.Join(g.write(file, made), file.Close()); err != nil {
			return fmt.Errorf("write bundle %s: %w", name, err)
		}
		return cli.Write(c, name+" written; "+cli.Count(len(g.left), "part")+" left out or cut, see contents.json in it\n")
	}
	return c
}

// gathering writes one bundle.
type gathering struct {
	files

	command            *cobra.Command
	namespace, version string
}

// all gathers everything.
func (g *gathering) all(at *cluster.Flags, node string, made time.Time) {
	set := g.command.Flags()
	if node == "" || set.Changed("machine") {
		args := []string{"-o=json"}
		if node != "" {
			args = append(args, "--node-name="+node)
		}
		g.run(machineFile, inspect.NewCommand(), args...)
	}
	g.run("doctor.txt", doctor.NewCommand())
	if node != "" {
		g.cluster(at, node)
	}
	g.json("contents.json", map[string]any{
		"made": made.UTC().Format(time.RFC3339), "heddle": g.version, "node": node, "left_out": g.left,
	}, nil)
}

// run adds what another command prints for the same flags.
func (g *gathering) run(name string, other *cobra.Command, more ...string) {
	args := more
	g.command.Flags().Visit(func(f *pflag.Flag) {
		if other.Flags().Lookup(f.Name) != nil || other.PersistentFlags().Lookup(f.Name) != nil {
			args = append(args, "--"+f.Name+"="+strings.Trim(f.Value.String(), "[]"))
		}
	})
	var out bytes.Buffer
	other.SetArgs(args)
	other.SetOut(&out)
	other.SetErr(&out)
	other.SilenceErrors, other.SilenceUsage = true, true
	if err := other.ExecuteContext(g.command.Context()); err != nil && !errors.Is(err, cli.ErrFindings) {
		g.lacks(name, err)
		return
	}
	g.add(name, out.Bytes())
}

const (
	// maxFile bounds the bytes kept of one file, and maxBundle those of all.
	maxFile, maxBundle = 1 << 20, 32 << 20
	// machineFile and configDir are read by --machine and --config.
	machineFile, configDir = "machine.json", "config/"
)

// files is the content of a bundle: of bounded size, without anything that looks like a credential.
type files struct {
	content map[string][]byte
	total   int
	// left are the files that were cut or left out, and why.
	left []string
}

// add adds a file. A file that is too long loses its beginning, since the end of a log matters most; a machine is
// complete or missing.
func (f *files) add(name string, content []byte) {
	whole := name == machineFile
	switch {
	case whole && len(content) > maxBundle/2, f.total+min(len(content), maxFile) > maxBundle:
		f.left = append(f.left, name+": the bundle is full")
		return
	case len(content) > maxFile && !whole:
		f.left = append(f.left, fmt.Sprintf("%s: the first %d bytes", name, len(content)-maxFile))
		content = content[len(content)-maxFile:]
	}
	f.content[name] = redact(content)
	f.total += len(f.content[name])
}

func (f *files) lacks(name string, err error) {
	f.left = append(f.left, name+": "+string(redact([]byte(err.Error()))))
}

// write writes a tar.gz.
func (f *files) write(to io.Writer, made time.Time) error {
	zip := gzip.NewWriter(to)
	archive := tar.NewWriter(zip)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.content)) {
		content := f.content[name]
		header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: made}
		errs = append(errs, archive.WriteHeader(header))
		_, err := archive.Write(content)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, archive.Close(), zip.Close())...)
}

// redact replaces what looks like a credential: heddle's daemons log none, but an
// address that an operator configured may have one, as may what another component
// answered.
func redact(content []byte) []byte {
	const value = `("(\\.|[^"\\])*"|[^\s",;&}]+)`
	lower := bytes.ToLower(content)
	for _, p := range []struct {
		// Every match contains one of the words, in lower case, which are quick to search for.
		words   []string
		pattern string
	}{
		// user:password@ in an address
		{[]string{"://"}, `(://)[^/@\s"']+(@)`},
		{[]string{"bearer"}, `(?i)(bearer\s+)` + value + `()`},
		{
			secretWords(),
			`(?i)((?:` + strings.Join(secretWords(), "|") + `)\\?"?\s*[:=]\s*)` + value + `()`,
		},
		// JSON Web Tokens
		{[]string{"eyj"}, `()eyJ[\w-]{10,}\.[\w-]+\.[\w-]+()`},
		{[]string{"-----begin"}, `()-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END [A-Z ]*PRIVATE KEY-----()`},
	} {
		if !slices.ContainsFunc(p.words, func(word string) bool { return bytes.Contains(lower, []byte(word)) }) {
			continue
		}
		expression := regexp.MustCompile(p.pattern)
		content = expression.ReplaceAll(content, fmt.Appendf(nil, "${1}REDACTED${%d}", expression.NumSubexp()))
	}
	return content
}

func secretWords() []string {
	return []string{"password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "m_key", "mkey"}
}
