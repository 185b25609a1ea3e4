package source

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// Names of files of a support bundle that commands read back.
const (
	BundleMachine = "machine.json"
	BundleNode    = "node.json"
	BundleConfig  = "config/"
)

const (
	// MaxBundle bounds the bytes of all files of a bundle.
	MaxBundle = 32 << 20
	maxFiles  = 500
)

// ReadBundle reads the files of a support bundle.
func ReadBundle(path string) (map[string][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	files, err := untar(file)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", path, err)
	}
	return files, nil
}

func untar(r io.Reader) (map[string][]byte, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	files, bounded := map[string][]byte{}, &io.LimitedReader{R: zip, N: 2 * MaxBundle}
	for archive := tar.NewReader(bounded); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err == nil && len(files) == maxFiles {
			err = errors.New("too many files")
		}
		if err != nil {
			return nil, err
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}
