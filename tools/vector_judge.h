// Judging the library's values by a file of layer vectors, and writing them as such a file.
#ifndef MILLIPEDE_TOOLS_VECTOR_JUDGE_H_
#define MILLIPEDE_TOOLS_VECTOR_JUDGE_H_

#include "fixtures/safetensors.h"
#include "tools/file_report.h"
#include "tools/vector_case.h"
#include "tools/vector_run.h"

namespace millipede::tools {

// Compares every tensor of the file. One that no rule looked at is a problem.
FileReport JudgeVectorCase(const VectorCase& vectors, const fixtures::SafetensorsFile& file,
                           const OwnValues& own);

// The library's end-to-end values as a file with the same tensors and metadata.
fixtures::SafetensorsWriter DumpVectorCase(const VectorCase& vectors,
                                           const fixtures::SafetensorsFile& file,
                                           const OwnValues& own);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_JUDGE_H_
