package sqlite

import "context"

// Exec runs a statement on the writer's connection.
func (j *Journal) Exec(ctx context.Context, stmt string) error {
	_, err := j.file.write.ExecContext(ctx, stmt)
	return err
}
